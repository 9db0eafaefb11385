"""Time matmuls, attention, a copy and collectives of this GPU, and write a row each.

    python -m course_lib.calibrate.measure --out my_gpu.csv
    torchrun --nproc-per-node 8 -m course_lib.calibrate.measure --out my_gpu.csv

The same as `course calibrate measure`, and needs no more than torch and numpy. Under torchrun collectives
are timed, too. `course calibrate fit` makes constants of the file.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from course_lib import __version__
from course_lib.calibrate import network
from course_lib.calibrate.kernels import FULL, SMALL, UNABLE, Kernel, Sizes, kernels_of
from course_lib.calibrate.table import Row, written
from course_lib.calibrate.timing import short, smi_text, sustained

SECONDS = 180.0
ON_CPU = "warning: a CPU is measured, with small sizes, to try the command: nothing can be fitted to it"
SHORT_S, LEAST_HELD_S, MOST_HELD_S = 0.6, 0.05, 20.0


def measure(out: str, device: str = "cuda", seconds: float = SECONDS) -> list[str]:
    """Measure, write `out`, and return lines that say what was left out.

    Raises: ValueError without such a device, for seconds that are not positive, a folder that is missing.
    """
    on = _checked(out, device, seconds)
    with network.ranks(on) as rank:
        left_out = [ON_CPU] if on.type == "cpu" else []
        rows = list(_with_bar(_rows(on, seconds, left_out), _count(on), rank))
        if rank == 0:
            Path(out).write_text(written(rows, conditions(on)), encoding="utf-8")
        return [*left_out, f"{len(rows)} rows -> {out}"] if rank == 0 else []


def conditions(device: torch.device) -> dict[str, str]:
    """Return what a reader must know of the machine."""
    now = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"
    found = {
        "measured": f"by course_lib {__version__} on {now}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "ranks": str(network.num_ranks()),
    }
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        found["memory"] = f"{about.total_memory / 2**30:.1f} GiB, {about.multi_processor_count} SMs"
        found["cuda"] = str(torch.version.cuda or torch.version.hip)
        words = smi_text(device, ("driver_version", "clocks.max.sm", "power.limit"))
        if words:
            found["driver"], found["clock"], found["power"] = words[0], f"{words[1]} MHz", f"{words[2]} W"
    return found


def _checked(out: str, device: str, seconds: float) -> torch.device:
    if device not in ("cuda", "cpu"):
        raise ValueError(f"--device must be cuda or cpu; got {device!r}. On AMD it is cuda, too.")
    if not 0 < seconds <= 3600:
        raise ValueError(f"--seconds must be more than 0, at most 3600; got {seconds:g}. Use 180.")
    if not Path(out).absolute().parent.is_dir():
        raise ValueError(f"--out must lie in a folder that exists; got {out}. Make it first.")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"a GPU must be there to be measured; got none that torch {torch.__version__} can use. Run it on "
            "a GPU, or add --device cpu to try the command."
        )
    return torch.device(device, network.local_rank()) if device == "cuda" else torch.device("cpu")


def _sizes(device: torch.device) -> tuple[Sizes, tuple[int, ...]]:
    is_gpu = device.type == "cuda"
    return (FULL, network.SIZES) if is_gpu else (SMALL, network.SMALL_SIZES)


def _kernels(device: torch.device) -> list[Kernel]:
    return list(kernels_of(_sizes(device)[0], device))


def _count(device: torch.device) -> int:
    kernels = _kernels(device)
    more = network.count_rows(_sizes(device)[1]) if network.num_ranks() > 1 else 0
    return len(kernels) + sum(k.is_held for k in kernels) + more


def _rows(device: torch.device, seconds: float, left_out: list[str]) -> Iterator[Row | None]:
    """Yield a row each, None for one that this device cannot give."""
    kernels = _kernels(device)
    rest = seconds - SHORT_S * len(kernels)
    held_s = min(MOST_HELD_S, max(LEAST_HELD_S, rest / max(1, sum(k.is_held for k in kernels))))
    if device.type == "cuda" and held_s < 2:
        left_out.append(f"held calls took {held_s:.2g} s each: too short for the clock to settle")
    missing: set[tuple[str, str, str]] = set()
    for kernel in kernels:
        row = kernel.row
        name = (row.kind, row.precision, row.how)
        if name in missing:
            yield from [None] * (1 + kernel.is_held)
            continue
        try:
            call = kernel.make(device)
            quick = short(call, device)
        except UNABLE as error:
            if not isinstance(error, torch.OutOfMemoryError):
                missing.add(name)
            left_out.append(f"left out: {' '.join(filter(None, name))}: {_first_line(error)}")
            yield from [None] * (1 + kernel.is_held)
            continue
        yield replace(row, seconds=quick.seconds, calls=quick.calls)
        if kernel.is_held:
            yield replace(row, held="sustained", **vars(sustained(call, device, held_s)))
        del call
    if network.num_ranks() > 1:
        yield from network.measure_network(device, _sizes(device)[1])


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:160]


def _with_bar(rows: Iterator[Row | None], count: int, rank: int) -> Iterator[Row]:
    """Pass rows on, with a progress bar on rank 0 of a terminal where tqdm is installed."""
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        yield from filter(None, rows)
        return
    yield from filter(None, tqdm(rows, total=count, unit="row", disable=rank > 0 or None, leave=False))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; a wrong input is one message and exit code 1."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, help="the CSV to write")
    parser.add_argument("--device", default="cuda", help="cuda; cpu to try the command")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="about how long kernels are timed")
    given = parser.parse_args(argv)
    try:
        said = measure(given.out, given.device, given.seconds)
    except (ValueError, OSError) as error:
        print(f"calibrate: {error}", file=sys.stderr)
        return 1
    for line in said:
        print(line)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
