"""Measure this machine's own roofline: the FLOP/s of its best matmul and the bytes/s of its best copy.

A roof is a ceiling, so the best of several tries counts, of several sizes, of numpy and of torch: another
program on the machine can only make a try slower. Lab 01 draws it beside an H100's. Production: `mamf-finder`
of stas00/ml-engineering does the same for accelerators, over thousands of shapes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from course_lib.units import positive

SIZES = (512, 1024, 1536)
COPY_BYTES = 128 * 2**20  # far beyond any cache


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """What a device can do at best; arithmetic is float32 on this machine.

    Attributes:
        name: for figures.
        flops_per_s: peak, dense.
        bytes_per_s: memory bandwidth, reads and writes together.
    """

    name: str
    flops_per_s: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        """Raises: ValueError for numbers that are not positive."""
        positive("flops_per_s", self.flops_per_s)
        positive("bytes_per_s", self.bytes_per_s)

    @property
    def ridge_flops_per_byte(self) -> float:
        """Intensity at which computing and moving take equally long."""
        return self.flops_per_s / self.bytes_per_s

    def attainable_flops_per_s(self, intensity: float) -> float:
        """Return the roof over an intensity in FLOP/byte."""
        return min(self.flops_per_s, intensity * self.bytes_per_s)


def best_time_s(
    fn: Callable[[], object], budget_s: float = 0.3, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the shortest of at least three calls of `fn`, repeated for about `budget_s`; one call warms
    up."""
    fn()
    best_s, end_s, num_calls = float("inf"), clock() + budget_s, 0
    while num_calls < 3 or clock() < end_s:
        start_s = clock()
        fn()
        best_s = min(best_s, clock() - start_s)
        num_calls += 1
    return best_s


def matmul_flops_per_s(timer: Callable[[Callable[[], object]], float] = best_time_s) -> dict[str, float]:
    """Return the float32 FLOP/s of square matmuls, "numpy 1024" and so on; `timer` times one call, in s."""
    found = {}
    for size in SIZES:
        a, b = (np.random.default_rng(seed).random((size, size), dtype=np.float32) for seed in (0, 1))
        out = np.empty_like(a)
        x, y = torch.from_numpy(a), torch.from_numpy(b)
        found[f"numpy {size}"] = 2 * size**3 / timer(lambda a=a, b=b, out=out: np.matmul(a, b, out=out))  # type: ignore[misc]
        found[f"torch {size}"] = 2 * size**3 / timer(lambda x=x, y=y: x @ y)  # type: ignore[misc]
    return found


def copy_bytes_per_s(timer: Callable[[Callable[[], object]], float] = best_time_s) -> float:
    """Return the bytes read plus the bytes written a second by a large copy."""
    source = torch.ones(COPY_BYTES // 4)
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / timer(lambda: target.copy_(source))


def this_machine(timer: Callable[[Callable[[], object]], float] = best_time_s) -> Roofline:
    """Measure this machine, in about three seconds: the best matmul and the best copy."""
    return Roofline(
        name="this machine, measured (fp32)",
        flops_per_s=max(matmul_flops_per_s(timer).values()),
        bytes_per_s=copy_bytes_per_s(timer),
    )
