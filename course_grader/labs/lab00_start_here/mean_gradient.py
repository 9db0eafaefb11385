"""`mean_gradient`: data parallelism in a dozen lines."""

from typing import Any

from course_grader.labs.lab00_start_here._rows_of_a_batch import (
    NO_LOSS,
    NO_X,
    after,
    case,
    gradient_bytes,
    gradients,
    rows_of_a_batch,
    weights,
)
from course_grader.parts.counts import Calls
from course_grader.parts.rules import Rule
from course_grader.types import Exercise, Observation, Why

EXERCISE = Exercise(
    order=2,
    title="Data parallelism in a dozen lines",
    minutes=20,
    difficulty=2,
    importance=5,
    lines=8,
    points={"values": 1.0, "bytes": 2.0},
    task="Write a function that returns, on every rank, the gradients of the mean loss over the rows of all "
    "ranks, as a list in the order of `model.parameters()`.",
    graded={
        "values": "They equal those of one process with the whole batch; the model is as it was.",
        "bytes": "Each gradient goes through an all_reduce once, and nothing else is sent.",
    },
    details="1 to 4 ranks (hidden: 3, 5, 6; a model of 1 MB). Ranks hold equally many rows and equal "
    "weights. Models (some nested, with buffers) and `loss_fn` differ; on some ranks a gradient is zero. "
    "Weights stay as they are, to the last bit, and go on training. Each call with async_op=True must have "
    "been waited for, with wait(), when the function returns: a barrier or a later call does not count as "
    "waiting. Bytes: exactly those of the gradients, in one all_reduce per parameter, or one for all, as you "
    "like; barriers are free, and one rank alone may skip it.",
    signature="(model, loss_fn, x, y)",
    forbids=("ddp",),
    scenario=rows_of_a_batch(),
    hints=(
        "First do what one process would do with its own rows: forward, loss, backward. Then ask what is "
        "missing.",
        "After backward, parameter.grad is the gradient of the mean over this rank's rows. With equally "
        "many rows on each rank, the mean over all rows is the mean of these means: a sum over ranks, and "
        "a division.",
        "Two things are easily forgotten: a sum over ranks is not yet a mean, and ranks pair collectives by "
        "their order. If it is right on one rank only, it is the first; if it hangs or shapes differ, the "
        "second.",
    ),
)

OPEN = [
    case(1, [3, 5, 1]),
    case(2, [2, 7, 4]),
    case(3, [4, 3, 3, 2], loss="linex", special=NO_LOSS),
    case(4, [5, 8, 2], nested=True, special=NO_X),
]
HIDDEN = [
    case(3, [256, 512, 4], special=NO_X),
    case(5, [2, 7, 4], nested=True, loss="linex"),
    case(6, [4, 3, 3, 2], special=NO_LOSS),
]

expected = gradients
LOCAL_ONLY = {"rows": "each"}
MISTAKES: dict[str, dict[str, Any]] = {
    "every rank ends with the gradient of rank 0": {"rows": "rank 0"},
    "mse_loss is taken; call the loss_fn that is passed in": {"loss": "mse"},
    "the target comes first; it is loss_fn(prediction, target)": {"loss": "swapped"},
}


def _weights_changed(seen: Observation) -> Why | None:
    """Near enough is compared before this; here not a bit may differ."""
    for rank, data in enumerate(seen.got):
        for name, array in weights(seen.case).items():
            if data.tensors[after(name)].tobytes() != array.tobytes():
                return Why(
                    f"`{name}` must stay as it is to the last bit",
                    f"rank {rank} changed it",
                    "Work on a copy.",
                )
    return None


PARTS = [
    Rule(part="values", problem=_weights_changed, gate=True),
    Calls(
        exactly=lambda case, rank, window: {"all_reduce": [gradient_bytes(case)]},
        only="bytes",
        ignore=("barrier",),
        must="the gradients' {bytes_:,} bytes, and nothing else, must go through all_reduce",
        why="They are all that data parallelism has to send.",
    ),
]
