"""`save_and_publish`: what is called step-N is whole at every moment; old ones stay until a new one is there.

Judged from the ranks' logs of a shared folder: the job may be killed after each of their entries.
"""

from course_grader.labs.lab13_frameworks_and_operations._publishing import (
    BESIDE,
    DONE,
    SAVES,
    case,
    moments,
    published,
    publishing,
)
from course_grader.parts.rules import Rule
from course_grader.types import Exercise, Observation, Why

EXERCISE = Exercise(
    order=6,
    title="Save, then publish",
    minutes=30,
    difficulty=4,
    importance=5,
    lines=13,
    points={"values": 0.5, "atomic": 1.5, "kept": 1.0},
    task="Write a function that saves this rank's shard with those of all others as `step-00000030`, if step "
    "is 30, keeps the last `keep` saves and returns whether it was published.",
    graded={
        "values": "Every rank returns True if all ranks wrote, else False.",
        "atomic": "Whenever the job is killed, each directory named step-... holds every rank's whole file.",
        "kept": "At every moment there are as many saves as before, up to `keep`; nothing else is left. "
        "What is no save stays.",
    },
    details="1, 2 and 3 ranks (hidden: 4), any of them slow, any with a full disk at one save: `write` then "
    "returns False and leaves half a file. The directory that is written into has a name that does not "
    "begin with step-. A rename lasts 0.1 s, and takes effect at one moment of it.",
    signature="(folder, step, shard, keep)",
    forbids=("saving",),
    scenario=publishing(),
    hints=(
        "Write into a directory with another name. Who may rename it, and what must that rank know first?",
        "One all_reduce of 'I wrote' is barrier and verdict at once. A failed save must be removed.",
        "Three things follow the agreement: rename, remove what is too old, return. On which rank, in which "
        "order, and how do the others learn that the rename is over before they return?",
    ),
)

OPEN = [
    case(1, keep=2, slow=0),
    case(3, keep=2, slow=1, full={30: 2}),
    case(2, keep=1, slow=0, full={20: 0}),
    case(3, keep=3, slow=2, full={10: 1}),
]
HIDDEN = [case(4, keep=2, slow=3, full={40: 3}), case(4, keep=1, slow=0, full={30: 1, 40: 2})]

expected = published
MISTAKES = {"a save counts as published though a rank's disk was full": {"however": True}}


def _atomic(seen: Observation) -> Why | None:
    for moment in moments(seen):
        if moment.missing:
            return Why(
                f"rank {moment.rank} renames {moment.name}, which is there no more",
                advice="Let one rank rename.",
            )
        for name in moment.steps:
            whole = [r for r in range(seen.n) if moment.files[name].get(r) == DONE]
            if len(whole) < seen.n:
                short = next(r for r in range(seen.n) if r not in whole)
                return Why(
                    f"{name} must hold the whole file of every rank as soon as it has this name",
                    f"killed when rank {moment.rank} {moment.what} {moment.name}, rank {short}'s is "
                    "missing or torn",
                )
        if (
            moment.what == "returns"
            and moment.name == "True"
            and f"step-{int(moment.new):08d}" not in moment.steps
        ):
            return Why(
                f"step-{int(moment.new):08d} must be there when a rank returns True",
                f"rank {moment.rank} returned before, or it has another name",
                "Meet once more behind the rename.",
            )
    return None


def _kept(seen: Observation) -> Why | None:
    keep, most = seen.case.params["keep"], 0
    last = None
    for moment in moments(seen):
        if BESIDE not in moment.files:
            return Why(
                f"{BESIDE}, which is no save, must stay",
                f"rank {moment.rank} {moment.what} it",
                "Look for names that begin with step-.",
            )
        most = max(most, len(moment.steps))
        if len(moment.steps) < min(keep, most):
            return Why(
                f"there must always be {min(keep, most)} saves once there were",
                f"when rank {moment.rank} {moment.what} {moment.name} there are {len(moment.steps)}",
                "Remove the old one last.",
            )
        last = moment
    if last is None:
        return None
    steps = [step for step in SAVES if str(step) not in seen.case.params["full"]][-keep:]
    want, names = [f"step-{step:08d}" for step in steps], sorted(set(last.files) - {BESIDE})
    if names != want:
        found = ", ".join(names) or "nothing"
        return Why(f"in the end there must be {', '.join(want)}, and nothing else", f"there is {found}")
    return None


PARTS = [
    Rule(part="atomic", problem=_atomic, passed="whole whenever it is killed"),
    Rule(part="kept", problem=_kept, passed="old saves stay until the new one is there"),
]
