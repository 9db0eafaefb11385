"""`checkpoint`: keep a function's inputs, run it again in backward."""

from course_lib.grading.core.types import Exercise, Seen
from course_lib.grading.parts.memory import Live
from course_lib.grading.parts.order import Holds, each_rank
from course_lib.grading.worlds.recomputation import boundary_bytes, case, computed, recomputation, twice

EXERCISE = Exercise(
    order=2,
    title="Checkpoint a function",
    minutes=30,
    difficulty=4,
    importance=5,
    lines=25,
    points={"values": 1.0, "memory": 2.0, "compute": 1.0},
    task="Write a function that returns `function(*inputs, **kwargs)` and keeps only the inputs for "
    "backward, where it runs `function` once more.",
    graded={
        "values": "Output and all gradients are those of the plain call, dropout included.",
        "memory": "After forward, what each call took in lives, and nothing it made inside.",
        "compute": "Every function runs twice in a step: once forward, once in backward.",
    },
    details="Calls: one after the other; with keywords, numbers and tensors that need no gradient; with two "
    "inputs that need one; with integers as the only input (the function's weights learn all the same); "
    "inside a checkpointed function (the innermost then runs 3 times). Dropout draws the same numbers again, "
    "and afterwards the generator stands where it stood. Memory: at the end of forward at most one [tokens, "
    "width] tensor a call lives, and two more.",
    signature="(function, *inputs, **kwargs)",
    forbids=("activation checkpointing",),
    scenario=recomputation("calls"),
    hints=(
        "An autograd.Function: its forward runs without a graph, so calling `function` there saves "
        "nothing. What must `ctx` keep so that backward can run it again, with a graph?",
        "backward: detach the saved inputs and give them requires_grad again, call `function` under "
        "torch.enable_grad(), then torch.autograd.backward(out, grad). Their .grad is what you return.",
        "Dropout draws again when the function runs again: which state must be the same, and how does the "
        "state of the outside survive? torch.random has a context for that. And autograd skips a Function "
        "of which no input needs a gradient: what could you pass along that does?",
    ),
)

OPEN = [
    case(4, 16, 8, use="one by one"),
    case(3, 12, 8, use="one by one", dropout=0.3),
    case(2, 12, 8, use="keywords"),
    case(3, 10, 8, use="two inputs"),
    case(2, 12, 8, use="tokens"),
    case(2, 12, 8, use="nested", dropout=0.2),
]
HIDDEN = [
    case(6, 24, 16, use="one by one", dropout=0.5),
    case(3, 16, 12, use="keywords", dropout=0.1),
    case(4, 14, 8, use="two inputs", dropout=0.3),
    case(3, 16, 8, use="tokens", dropout=0.2),
    case(3, 20, 16, use="nested"),
]

expected = computed
MISTAKES = {
    "autograd skips your Function, none of whose inputs needs a gradient: pass one more that does": {
        "skipped": True
    },
    "dropout draws other numbers when it is computed again": {"anew": True},
    "gradients stop at the inputs: the function's own weights get none": {"without": "parameters"},
    "the inputs get no gradient: return it from backward": {"without": "x"},
    "backward begins from ones, not from the gradient that it is given": {"ones": True},
}


def _runs(seen: Seen, rank: int) -> str:
    runs = seen.got[rank].values["runs"]
    fewest = min(range(len(runs)), key=lambda i: runs[i])
    if runs[fewest] < 2:
        return (
            f"layer {fewest} must run twice in a step; it ran {runs[fewest]} times. Run it again in backward."
        )
    return twice(seen.case, runs)


PARTS = [
    Live(
        at=lambda case: {
            "forward ends": ("after the forward pass", (case.params["layers"] + 2) * boundary_bytes(case))
        },
        free_alone=False,
        why="Keep the inputs of each call; what it computes inside must not outlive it.",
    ),
    Holds(
        part="compute",
        problem=each_rank(_runs),
        passed="each function runs once forward and once in backward",
    ),
]
