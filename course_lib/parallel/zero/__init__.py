"""ZeRO stages 1 and 2: shard optimizer state, then gradients. Lab 04; begin with `loop.py`."""

from course_lib.parallel.zero._bucket import ShardedBucket
from course_lib.parallel.zero.engine import ZeroOptimizer
from course_lib.parallel.zero.loop import ZeroLoop

__all__ = ["ShardedBucket", "ZeroLoop", "ZeroOptimizer"]
