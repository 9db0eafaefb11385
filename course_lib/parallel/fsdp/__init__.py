"""FSDP and HSDP: parameters, gradients and optimizer state in shards. Lab 05; begin with `explicit.py`."""

from course_lib.parallel.fsdp._flat_param import FlatParam
from course_lib.parallel.fsdp.engine import FSDP

__all__ = ["FSDP", "FlatParam"]
