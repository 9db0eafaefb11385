"""What a program of `programs/` may ask for inside a rank: where it is, and marks in the trace."""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.comm import trace


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
        """Collect garbage and put a named mark into the trace, where `.live_bytes_at(name)` reads."""
        trace.mark(name)
