"""`expert_parallel_backward`: whose gradients are summed over whom, where experts and replicas meet."""

from typing import Any

from course_grader.labs.lab11_expert_parallel import _expert_step as steps
from course_grader.labs.lab11_expert_parallel._expert_step import case
from course_grader.parts.bytes import EachRankAtMost
from course_grader.parts.common import BEGINS_TO_ENDS
from course_grader.types import Case, Exercise, Expected

EXERCISE = Exercise(
    order=4,
    title="Gradients over EP x DP",
    minutes=25,
    difficulty=4,
    importance=5,
    lines=10,
    points={"values": 1.0, "bytes": 2.0},
    task="Every rank has tokens of its own, and `loss_sum`, the sum of their losses. Write backward: "
    "afterwards `param.grad` is the gradient of the mean over **all** ranks' tokens. Return that mean.",
    graded={
        "values": "The mean, and the gradients of router, shared expert and experts, equal those of one "
        "process, on every rank.",
        "bytes": "Each gradient is summed once, over the ranks that need it, and over no others, by "
        "whatever call.",
    },
    details="ep x dp of 1 to 4 ranks (hidden: 6), ranks with different numbers of tokens, experts without "
    "any (their gradients are zeros), float64. mesh has the axes dp and ep, in either order: "
    "mesh.group('dp') are the ranks with the same experts, mesh.group('dp', 'ep') all ranks. Bytes beside "
    "those of backward's own all_to_alls: an all_reduce (which counts double) of the router and the shared "
    "expert over all ranks and one of this rank's experts over dp, and 256 bytes. loss_sum and the "
    "parameters themselves stay as they are.",
    signature="(loss_sum, num_tokens, common_params, expert_params, mesh)",
    forbids=("expert parallelism",),
    scenario=steps.SCENARIO,
    hints=(
        "A token of rank 0 visited an expert on rank 1. Where does backward leave what it has to say "
        "about that expert's weights, and who else must be told?",
        "loss_sum.backward() runs dispatch and combine backwards: the sum over the ep ranks' tokens is in "
        "an expert's gradient already. Only ranks with a copy of the same expert still differ. And by how "
        "many tokens must all gradients be divided, whoever holds them?",
        "Three sums: tokens and loss, over whom? Gradients of what all ranks have, over whom? Gradients "
        "of an expert, over those with a copy of it alone. One division for all of them.",
    ),
)

OPEN = [
    case(1, 1),
    case(2, 1),
    case(1, 2),
    case(2, 2, idle=True),
    case(3, 1),
    case(2, 2, dp_inside=True),
]
HIDDEN = [case(2, 3), case(4, 1), case(1, 4, tokens=9), case(3, 2, dp_inside=True, idle=True)]


def expected(case: Case, **mistake: Any) -> Expected:
    """Mean loss and gradients of one process."""
    return steps.one_process(case, **mistake)


MISTAKES: dict[str, dict[str, Any]] = {
    "experts' gradients were divided by the tokens of the ranks with the same experts only: those of all "
    "ep ranks are in them already": {"experts": "divided by dp's tokens"},
    "gradients of different experts were added up: ep ranks hold different ones": {"experts": "over all"},
    "experts' gradients were not summed over dp": {"experts": "own"},
    "router and shared expert were summed over dp only": {"common": "dp"},
    "router and shared expert were summed over ep only": {"common": "ep"},
    "the gradients are those of the sum: nobody divided by the number of all tokens": {"divided": "nobody"},
    "each rank divided by the number of its own tokens": {"divided": "own"},
    "the mean of the ranks' means was taken: they have different numbers of tokens": {"divided": "means"},
}
LOCAL_ONLY = {"experts": "own", "common": "own", "divided": "own"}


def _bound(case: Case, rank: int) -> int:
    common = 2 * steps.common_bytes() if case.world_size > 1 else 0
    experts = 2 * steps.expert_bytes(case) if case.params["mesh"]["dp"] > 1 else 0
    return steps.backward_bytes(case, rank) + common + experts + 256


PARTS = [
    EachRankAtMost(
        at_most=_bound,
        what="backward's own all_to_alls, one all_reduce of router and shared expert, one of its experts "
        "over dp, and 256",
        window=BEGINS_TO_ENDS,
        why="Ranks along ep hold different experts: their gradients have nothing to do with one another. One "
        "backward, and each gradient summed once.",
    ),
]
