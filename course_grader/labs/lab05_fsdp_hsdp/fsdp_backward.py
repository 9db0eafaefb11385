"""`fsdp_backward`: gather again, compute, reduce to shards, free."""

from course_grader.labs.lab05_fsdp_hsdp import _unit_chain as chain
from course_grader.labs.lab05_fsdp_hsdp._unit_chain import SHARDS, case
from course_grader.parts.bytes import BytesAtMost
from course_grader.parts.common import BEGINS_TO_ENDS
from course_grader.parts.memory import Live
from course_grader.types import Case, Exercise

EXERCISE = Exercise(
    order=4,
    title="Gather again, reduce_scatter",
    minutes=25,
    difficulty=3,
    importance=5,
    lines=15,
    points={"values": 1.0, "bytes": 1.0, "memory": 2.0},
    task="Write the backward pass over the chain: gather each unit again (the last one is still whole), call "
    "`unit.backward`, and leave this rank's shard of the mean gradient in `unit.grad`.",
    graded={
        "values": "Every `unit.grad` is this rank's shard of the mean gradient; the shards are unchanged.",
        "bytes": "Each unit but the last is gathered once, each gradient reduced once.",
        "memory": "What is whole is let go of as soon as it was used; nothing whole is left.",
    },
    details="1 to 4 ranks (hidden: up to 6); sizes that n does not divide (gradients are zero in the "
    "padding), weights tied inside a unit, frozen units (`unit.grad` stays None) and parts of units. Bytes: "
    "a rank's calls move each padded unit but the last at most once (an all_gather counts its output), and "
    "the gradients of the units that train at most once (an all_reduce counts double). Memory: whenever a "
    "unit begins its backward, at most four vectors of the size of the largest unit live beyond shards and "
    "their gradients (its parameters, the others for gradients on their way); none at the end.",
    signature="(units, grad) -> None",
    forbids=("fsdp",),
    scenario=chain.unit_chain(phase="backward", gradients=True),
    hints=(
        "Forward left one unit whole. Which one, and why does that save a message? What is the mirror image "
        "of an all_gather?",
        "dist.reduce_scatter_tensor(mine, full_grad) sums full_grad [n * len(mine)] over the ranks and "
        "leaves rank r the r-th part. full_grad is as long as unit.full, with zeros in the padding.",
        "Four questions for each unit: is it whole already, who needs the whole vector once its backward "
        "has run, what has a frozen unit to send, and what makes a sum over ranks a mean? If memory is "
        "lost, see which line is the last to use `unit.full`.",
    ),
)

OPEN = [
    case(1, ["layer", "tied", "frozen"]),
    case(2, ["layer", "wide", "layer", "tied", "layer"]),
    case(3, ["layer", "frozen", "layer", "layer", "part frozen"], width=46),
    case(4, ["tied"] * 6),
]
HIDDEN = [
    case(4, ["frozen", "tied", "layer", "layer"], width=1),
    case(5, ["layer", "frozen", "part frozen", "layer"] * 2, dtype="float32"),
    case(6, ["layer"] * 4, width=211),
]

expected = chain.with_gradients
LOCAL_ONLY = chain.LOCAL_ONLY
MISTAKES = chain.MISTAKES


def _kept(case: Case) -> int:
    """The last unit lives at "begins" already."""
    return chain.unit_bytes(case, chain.last_unit(case))


def _computing(case: Case) -> dict[str, tuple[str, int]]:
    return chain.when_computing(
        case, "backward", 4, lambda unit: chain.shard_gradients(case, unit + 1) - _kept(case)
    )


WHY = "The last unit is still whole; each other one is gathered once more, and its gradients reduced once."
FREE = "Free unit.full after backward; keep only this rank's part of the gradient."
PARTS = [
    BytesAtMost(
        at_most={
            "parameters": lambda case: sum(chain.sizes(case)) - _kept(case),
            "gradients": lambda case: sum(chain.sizes(case, trained_only=True)),
        },
        least=lambda case: (case.world_size - 1) * chain.least_backward(case, kept_last=True),
        least_part="memory",
        windows=[BEGINS_TO_ENDS],
        why=WHY,
    ),
    chain.whole_at_end(lambda case: [], FREE),
    Live(
        at=lambda case: chain.at_end(case, 0, chain.shard_gradients(case) - _kept(case)),
        beyond=SHARDS,
        why=FREE,
    ),
    *chain.in_turn("backward", SHARDS, FREE, live=_computing, ahead=2, kept_last=True),
]
