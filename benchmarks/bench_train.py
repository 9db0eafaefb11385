"""The training loop on one core: its share of the measured matmul roof, and how far the loss falls.

Seconds of CPU time, of the steps and of the roof: what else runs on the machine counts less.
"""

from __future__ import annotations

import time

from course_lib.train import TrainOptions, train

Row = tuple[str, float, str, str]

OPTIONS = TrainOptions(model="lab", steps=16, warmup_steps=3, threads=1)


def rows() -> list[Row]:
    """Give (name, value, unit, note), measured in one run."""
    begin_s = time.process_time()
    result = train(OPTIONS, progress=False, clock=time.process_time)
    took_s = time.process_time() - begin_s
    tokens = f"{OPTIONS.batch_size} x {OPTIONS.seq_len} tokens per step"
    fall = 1 - result.losses[-1] / result.losses[0]
    return [
        ("MFU", 100 * result.typical("mfu"), "%", f"goal: at least 60; the lab's model, {tokens}"),
        ("the roof it divides by", result.peak.flops_per_s / 1e9, "GFLOP/s", result.peak.source),
        ("the loss falls by", 100 * fall, "%", f"goal: at least 33 in a minute; {OPTIONS.steps} steps"),
        ("in", took_s, "s", "with the start and the measurement of the roof"),
    ]
