"""`python -m course_lib.train`: train, say what was measured, draw the loss."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from course_lib.train import TrainResult, parse, train


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; a wrong input is one message and exit code 1."""
    try:
        options = parse(sys.argv[1:] if argv is None else argv)
        result = train(options)
    except (ValueError, OSError) as error:
        print(f"train: {error}", file=sys.stderr)
        return 1
    print(summary(result))
    if options.out:
        from course_lib.viz.training import draw_losses

        curve = Path(options.out) / "loss.png"
        curve.write_bytes(draw_losses({options.model: result.losses}).png())
        print(f"metrics: {Path(options.out) / 'metrics.jsonl'}, loss curve: {curve}")
    return 0


def summary(result: TrainResult) -> str:
    """Return the run's last lines: how far the loss fell, and MFU and HFU with the peak they divide by."""
    first, last = result.losses[0], result.losses[-1]
    rates = {
        name: float(f"{result.typical(name):.4g}") for name in ("step_time_s", "tokens_per_s", "mfu", "hfu")
    }
    return (
        f"loss {first:.3f} -> {last:.3f} ({1 - last / first:.0%} less) in {len(result.steps)} steps\n"
        f"median of the later steps: {json.dumps(rates)}\n"
        f"peak of one device: {result.peak}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
