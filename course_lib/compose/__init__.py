"""Put all techniques together: one training step of one model over a mesh with up to five axes.

Order of the axes, fastest last: pp, dp_replicate, dp_shard, ep, cp, tp. Tensor parallelism talks most and
stays inside a server. Lab 12. Production code: Megatron-Core and torchtitan build the same from such parts.
"""

from course_lib.compose.degrees import Degrees, mesh_of
from course_lib.compose.step import ComposedTraining

__all__ = ["ComposedTraining", "Degrees", "mesh_of"]
