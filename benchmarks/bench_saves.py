"""What saving costs a training on 2 ranks: how long it waits for an asynchronous save.

A save copies this rank's shards of weights and optimizer while the training waits, and writes them beside the
next steps. Steps beside a write are slower where ranks use every core; that is no stall, and is told apart.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from course_lib.train import TrainOptions, train

Row = tuple[str, float, str, str]

EVERY, SAVES = 8, 6
OPTIONS = TrainOptions(
    model="lab", steps=EVERY * SAVES, batch_size=16, warmup_steps=3, peak="1 TFLOP/s", dp_shard=2
)


def rows() -> list[Row]:
    """Give (name, value, unit, note), measured in one run."""
    with tempfile.TemporaryDirectory() as folder:
        options = {**vars(OPTIONS), "out": folder, "save_every": EVERY, "keep": 1}
        steps = train(TrainOptions(**options), progress=False).steps
        bytes_ = sum(file.stat().st_size for file in Path(folder).glob("saves/step-*/*"))
    stalls = [step["stall_s"] for step in steps if "stall_s" in step]
    beside = [step["step_time_s"] for step in steps if step["step"] % EVERY == 0 and step["step"]]
    alone = statistics.median(step["step_time_s"] for step in steps if step["step"] % EVERY >= EVERY // 2)
    stall = statistics.median(stalls[1:])
    many = f"median of {len(stalls) - 1}, without the first"
    return [
        ("step", 1e3 * alone, "ms", "dp_shard=2 on gloo, the lab's model, no save under way"),
        ("a save", bytes_ / 1e6, "MB", "weights and AdamW's moments in float32, both ranks together"),
        ("stall of an asynchronous save", 1e3 * stall, "ms", many),
        (
            "stall / step",
            100 * stall / alone,
            "%",
            f"goal: at most 2; at most {100 * max(stalls) / alone:.2g}",
        ),
        ("step beside the write / step", statistics.median(beside) / alone, "x", "2 ranks on all cores"),
    ]
