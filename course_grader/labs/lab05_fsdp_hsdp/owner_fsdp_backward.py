"""`owner_fsdp_backward`: gradients are reduced to each unit's owner, who updates."""

from course_grader.labs.lab05_fsdp_hsdp import _unit_chain as chain
from course_grader.labs.lab05_fsdp_hsdp._unit_chain import OWNED, owned
from course_grader.parts.bytes import BytesAtMost
from course_grader.parts.common import BEGINS_TO_ENDS
from course_grader.parts.memory import Live
from course_grader.types import Exercise

EXERCISE = Exercise(
    order=2,
    title="Reduce to the owner, who updates",
    minutes=20,
    difficulty=3,
    importance=3,
    lines=14,
    points={"values": 1.0, "bytes": 0.5, "memory": 1.5},
    task="Write the backward pass over the chain: bring each unit again, call `unit.backward`, reduce the "
    "gradient to the unit's owner, and let the owner take one step of SGD on the mean gradient.",
    graded={
        "values": "Every owner's parameters equal one step of SGD in one process on all ranks' samples.",
        "bytes": "Each unit's parameters move once, and its gradients once.",
        "memory": "What is whole is let go of as soon as it was used; at the end nothing whole is left.",
    },
    details="1 to 4 ranks (hidden: up to 6); larger, tied and frozen units and parts of units, which stay as "
    "they are. Bytes: a rank's calls move each unit's parameters at most once, its gradients at most once "
    "(an all_reduce counts double), a frozen unit's not at all. Memory: whenever a unit begins its backward, "
    "at most three vectors of the size of the largest unit (its parameters, and two units' gradients on "
    "their way) live beside what the rank owns; none at the end.",
    signature="(units, grad, lr) -> None",
    forbids=("fsdp",),
    scenario=chain.unit_chain(phase="backward", arguments=["lr"]),
    hints=(
        "It is the forward loop the other way round, and one more message: what does each rank have after "
        "unit.backward, and who needs the sum of it?",
        "grad, full_grad = unit.backward(grad) gives the gradients of the unit's input and of its `full`. "
        "dist.reduce(full_grad, dst=unit.owner) leaves the sum on the owner only.",
        "Three questions for each unit: who still needs the whole parameters once `grad` has moved on, what "
        "has a frozen unit to send, and what makes the owner's sum a mean? If all is right at world size 1 "
        "only, it is the last one.",
    ),
)

OPEN = [
    owned(1, ["layer", "tied"], lr=0.5),
    owned(2, ["layer", "wide", "layer", "tied", "layer"], lr=0.3),
    owned(3, ["layer", "frozen", "layer", "layer", "wide"], lr=0.7),
    owned(4, ["layer"] * 6, lr=0.2),
]
HIDDEN = [
    owned(4, ["tied", "layer", "frozen"], lr=0.4, dtype="float32"),
    owned(6, ["layer", "part frozen", "layer"] * 3, lr=0.6),
    owned(3, ["layer"] * 4, lr=0.5, width=210),
]

expected = chain.stepped
MISTAKES = chain.MISTAKES_OF_A_STEP

FREE = "Free unit.full after backward, and the whole gradient once it is reduced."
PARTS = [
    BytesAtMost(
        at_most={
            "parameters": lambda case: sum(chain.sizes(case)),
            "gradients": lambda case: sum(chain.sizes(case, trained_only=True)),
        },
        least=lambda case: (case.world_size - 1) * chain.least_backward(case),
        least_part="memory",
        windows=[BEGINS_TO_ENDS],
        why="One broadcast of the parameters, one reduce of the gradients to the owner, none if frozen.",
    ),
    chain.whole_at_end(lambda case: [], FREE),
    Live(at=lambda case: chain.at_end(case, vectors=0), beyond=OWNED, why=FREE),
    *chain.in_turn(
        "backward", OWNED, FREE, live=lambda case: chain.when_computing(case, "backward", vectors=3), ahead=2
    ),
]
