"""ZeRO stages 1 and 2: the optimizer that shards its state, and then gradients. Lab 04."""

from course_lib.parallel.zero._bucket import ShardedBucket
from course_lib.parallel.zero.engine import ZeroOptimizer

__all__ = ["ShardedBucket", "ZeroOptimizer"]
