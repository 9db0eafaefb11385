"""Judge's half of `publishing`: a shared folder, replayed entry by entry from the ranks' logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from course_grader.expected import on_ranks
from course_grader.expected.on_ranks import own
from course_grader.types import Array, Case, Expected, Observation, Scenario

SAVES = (10, 20, 30, 40)
DONE, TORN = "whole", "torn"
BESIDE = "logs"  # a directory that no save made


def case(world_size: int, *, keep: int, slow: int, full: Mapping[int, int] | None = None) -> Case:
    """Four saves beside a folder "logs". full: step -> the rank whose disk is full then."""
    disks = {str(step): rank for step, rank in (full or {}).items()}
    words = "".join(f", rank {rank}'s disk full at step {step}" for step, rank in disks.items())
    return on_ranks.case(
        world_size,
        saves=SAVES,
        keep=keep,
        slow=slow,
        full=disks,
        beside=[BESIDE],
        trace=False,
        label=f"{world_size} rank{'s' * (world_size > 1)}, keep={keep}, rank {slow} slow{words}",
    )


def publishing() -> Scenario:
    """impl(folder, step, shard, keep) -> whether the save was published."""
    return Scenario(rank_side="course_grader.inside.programs.lab13.publishing:publishing", inputs=_inputs)


def _inputs(case: Case, rank: int) -> dict[str, Array]:
    return {"shard": own(case, rank, "shard", 6)}


def published(case: Case, *, however: bool = False) -> Expected:
    """Whether each save is published: where every disk had room. however: torn ones too."""
    return {
        "published": [[however or str(step) not in case.params["full"] for step in SAVES]] * case.world_size
    }


@dataclass
class Moment:
    """The folder after one entry of the log.

    Attributes:
        rank: whose entry it was.
        what: opens, wrote, renames, removes or returns.
        name: the directory; of a rename, the old name.
        new: of a rename, the new name; of a return, the step.
        files: directory -> rank -> whether its file is whole or torn.
        missing: the entry renames what is not there.
    """

    rank: int
    what: str
    name: str
    new: str
    files: dict[str, dict[int, str]] = field(default_factory=dict)
    missing: bool = False

    @property
    def steps(self) -> list[str]:
        """What a reader takes for saves."""
        return sorted(name for name in self.files if name.startswith("step-"))


def moments(seen: Observation) -> Iterator[Moment]:
    """Replay the logs of all ranks in the order of their times: a kill may come after each entry."""
    logs = [data.values["log"] for data in seen.got]
    entries = sorted(
        (at, rank, what, name, new) for rank, log in enumerate(logs) for at, what, name, new in log
    )
    files: dict[str, dict[int, str]] = {BESIDE: {}}
    for _, rank, what, name, new in entries:
        missing = what == "renames" and name not in files
        if what == "opens":
            files.setdefault(name, {})[rank] = TORN
        elif what == "wrote":
            files.setdefault(name, {})[rank] = DONE
        elif what == "removes":
            files.pop(name, None)
        elif what == "renames" and not missing:
            files[new] = files.pop(name)
        yield Moment(rank, what, name, new, {key: dict(held) for key, held in files.items()}, missing)
