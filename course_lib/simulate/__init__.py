"""Run the course's own training step at full size, on a cluster that is only described.

One fake rank of each kind of pipeline stage is recorded (`record`), its micro-batches and its place in the
pipeline are multiplied (`extend`), and one rank of each class is replayed on the cluster (`step`). Lab 12.
Others: ASTRA-sim and Meta's Chakra replay traces of real runs; Megatron-Core has no such thing.
"""

from course_lib.simulate.record import record_stage
from course_lib.simulate.step import Simulation, simulate_step

__all__ = ["Simulation", "record_stage", "simulate_step"]
