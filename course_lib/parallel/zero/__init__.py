"""ZeRO stages 1 and 2: shard optimizer state, then gradients. Lab 04; begin with `explicit.py`."""

from course_lib.parallel.zero._bucket import ShardedBucket
from course_lib.parallel.zero.engine import ZeroOptimizer

__all__ = ["ShardedBucket", "ZeroOptimizer"]
