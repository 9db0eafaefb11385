"""Put all techniques together: one training step of one model over a mesh with up to six axes.

Order of the axes, fastest last: pp, dp_replicate, dp_shard, ep, cp, tp. Tensor parallelism talks most and
stays inside a server. Lab 12. Production code: Megatron-Core and torchtitan build the same from such parts.
Megatron can gather weights while the next forward computes; here nothing overlaps that all_gather. It has a
function for each schedule; here any is a list for one interpreter. Its default for cp is a ring, here an
all-gather. It lays ep over ranks of dp, cp and tp (folding); here ep is an axis of its own.
"""

from course_lib.compose.degrees import Degrees, mesh_of
from course_lib.compose.step import ComposedTraining

__all__ = ["ComposedTraining", "Degrees", "mesh_of"]
