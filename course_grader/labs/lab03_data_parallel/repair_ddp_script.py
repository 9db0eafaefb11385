"""`repair_ddp_script`: a script with many defects must run under torchrun, and train as one process would."""

from course_grader.expected.torchrun_rules import RULES
from course_grader.expected.torchrun_script import case, torchrun_script
from course_grader.types import Exercise

EXERCISE = Exercise(
    order=7,
    title="Repair a DDP script",
    minutes=30,
    difficulty=3,
    importance=5,
    lines=20,
    points={"values": 2.0, "order": 1.0},
    task="Write a function that returns the text of the repaired script.",
    graded={
        "values": "It runs under torchrun, gradients cross in every step, and losses and parameters of every "
        "process equal those of one process that trains on the same samples.",
        "order": "Each epoch deals out every sample, in another order than the one before.",
    },
    details="2 processes (graded: 3) with `--gpus 0`: your lines for GPUs are not judged, the check has "
    "none. float64 as the data are, or float32. At most n - 1 samples of an epoch are taken twice, none is "
    "left out. A check takes about 3 seconds.",
    signature="()",
    scenario=torchrun_script(),
    hints=(
        "Repair what Python complains about first, and check after each repair: the message names the line "
        "of your text.",
        "Then read the script as torchrun runs it: it sets RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and "
        "MASTER_PORT for each process. What may the script decide itself, and what must it take from there, "
        "or from `--gpus`?",
        "What fails silently: gradients are averaged only by calling the wrapped model; a method without () "
        "does nothing; a DistributedSampler deals the same order each epoch unless it is told the epoch.",
    ),
)

OPEN = [case(2)]
HIDDEN = [case(3)]
PARTS = RULES
