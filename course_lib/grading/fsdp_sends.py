"""Who sends a unit of a chain how often. Verdict side of lab 05 only."""

from __future__ import annotations

from collections.abc import Sequence

from course_lib.comm.trace import Mark
from course_lib.grading.exercise import Case, Part, RankData
from course_lib.grading.fsdp_oracle import calls_until, sizes


def sends_part(
    case: Case, got: list[RankData], gathered: Sequence[tuple[str, int]], ahead: int = 1
) -> list[Part]:
    """Fail if a rank sends a unit more than once: all ranks' bytes together hide who does.

    gathered, ahead: as in `memory_part`. What the gradients send is allowed beside the parameters.
    """
    spare = min(sizes(case)) // 4
    for rank, data in enumerate(got):
        names = {mark.name for mark in data.traced.of(Mark)}
        for place, (mark, _) in enumerate(gathered):
            due = sum(bytes_ for _, bytes_ in gathered[: place + ahead])
            due += sum(sizes(case)[::-1][:place]) if mark.startswith("backward") else 0
            sent = sum(c.bytes_ for c in calls_until(data, mark) if c.op == "send") if mark in names else 0
            if sent > due + spare:
                text = (
                    f"a rank may send each unit once; when {mark} begins, rank {rank} has sent {sent:,} "
                    f"bytes, and the units until then have {due:,}. Use a broadcast, or pass the unit on."
                )
                return [Part("bytes", False, text)]
    return []
