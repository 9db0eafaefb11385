"""`repair_fsdp_script`: a script that shards with FSDP2 must run under torchrun, and train as one process."""

from course_grader.expected.torchrun_rules import RULES, gate, whole_weights
from course_grader.expected.torchrun_script import case, torchrun_script
from course_grader.types import Exercise

EXERCISE = Exercise(
    order=11,
    title="Repair an FSDP2 script",
    minutes=25,
    difficulty=3,
    importance=4,
    lines=14,
    points={"values": 1.0, "order": 0.5},
    bonus=True,
    task="Write a function that returns the text of the repaired script.",
    graded={
        "values": "It runs under torchrun, weights are sharded, gradients cross in every step, and losses "
        "and parameters of every process equal those of one process that trains on the same samples.",
        "order": "Each epoch deals out every sample, in another order than the one before.",
    },
    details="2 processes (graded: 3) with `--gpus 0`. float64 as the data are, or float32. Every process "
    "reports the loss of its own batch and the parameters, whole; an optimizer of torch.optim steps its own "
    "rows of each weight. At most n - 1 samples of an epoch are taken twice, none is left out. "
    "A check takes about 5 seconds.",
    signature="()",
    scenario=torchrun_script(),
    hints=(
        "Three defects stop it, the others do not. Check after each repair.",
        "What does the number of processes follow from? Which weights belong to no unit? Whose tensors does "
        "the optimizer step once the model is sharded? DDP sends rank 0's weights to all at the start: does "
        "FSDP2?",
        "What is a collective must be called by all: `full_tensor` is one. And look at the data: who deals "
        "the samples, and how does it learn that an epoch begins?",
    ),
)

OPEN = [case(2)]
HIDDEN = [case(3)]
PARTS = [*RULES, gate("values", whole_weights)]
