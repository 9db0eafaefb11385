"""What a program of `programs/` may ask for inside a rank: where it is, marks in the trace, quiet memory."""

from __future__ import annotations

import gc
from dataclasses import dataclass


@dataclass(frozen=True)
class Probe:
    """Passed to every program as its last argument.

    Attributes:
        rank: this rank, from 0.
        world_size: how many ranks there are.
    """

    rank: int
    world_size: int

    def mark(self, name: str) -> None:
        """Put a named mark into the trace (nothing if untraced): `rank_trace.marks`, `.live_bytes_at(name)`."""
        from course_lib.comm.trace import mark

        mark(name)

    def settle(self, name: str) -> None:
        """Collect garbage, then mark: the point at which a memory part reads live bytes."""
        gc.collect()
        self.mark(name)
