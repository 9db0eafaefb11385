"""Time one call on a GPU, in bursts with pauses or held at the power limit, and say what clock it ran at.

A burst ends before the power limit lowers the clock; a training step does not. Production code times with
`triton.testing.do_bench`, which is a burst.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

BURST_S, PAUSE_S, BURSTS = 0.03, 0.05, 5
WARM_SHARE = 0.4
"""Of a held call, what passes before it counts."""
QUERY = ("clocks.sm", "power.draw")

Call = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Timed:
    """Seconds of one call, of how many, and the clock and power in the middle of a held one; 0: unknown."""

    seconds: float
    calls: int
    sm_mhz: int = 0
    watts: int = 0


def short(
    call: Call, device: torch.device, burst_s: float = BURST_S, agree: Callable[[int], int] = int
) -> Timed:
    """Return the median of five bursts. `agree`: how ranks that call together find one number of calls."""
    count = agree(max(1, round(burst_s / _once_s(call, device))))
    tries = []
    for _ in range(BURSTS):
        time.sleep(min(PAUSE_S, burst_s))
        tries.append(_run_s(call, count, device) / count)
    return Timed(seconds=sorted(tries)[BURSTS // 2], calls=BURSTS * count)


def sustained(call: Call, device: torch.device, seconds: float) -> Timed:
    """Call without a pause for so many seconds; what counts is the time after the clock has settled."""
    each = _once_s(call, device)
    _run_s(call, max(1, round(WARM_SHARE * seconds / each)), device)
    count = max(1, round((1 - WARM_SHARE) * seconds / each))
    clock: list[float] = []
    watch = threading.Thread(target=lambda: clock.extend(smi(device, QUERY)), daemon=True)
    watch.start()
    total = _run_s(call, count, device)
    watch.join()
    found = Timed(seconds=total / count, calls=count)
    return replace(found, sm_mhz=round(clock[0]), watts=round(clock[1])) if clock else found


def _once_s(call: Call, device: torch.device) -> float:
    """Warm up, then return the seconds of one of three calls."""
    call()
    synchronize(device)
    return max(_run_s(call, 3, device) / 3, 1e-7)


def _run_s(call: Call, count: int, device: torch.device) -> float:
    """Return the seconds of `count` calls, on the device's own clock where it has one."""
    if device.type != "cuda":
        start_s = time.perf_counter()
        for _ in range(count):
            call()
        return time.perf_counter() - start_s
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(count):
        call()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3


def smi(device: torch.device, names: tuple[str, ...]) -> list[float]:
    """Ask nvidia-smi for numbers of this GPU; [] where it is missing or does not know."""
    try:
        return [float(word) for word in smi_text(device, names)]
    except ValueError:
        return []


def smi_text(device: torch.device, names: tuple[str, ...]) -> list[str]:
    """Ask nvidia-smi for words; [] where it is missing."""
    if device.type != "cuda":
        return []
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", "")
    which = [f"--id=GPU-{uuid}"] if uuid else [f"--id={device.index or 0}"]
    call = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits", *which]
    try:
        done = subprocess.run(call, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    words = [word.strip() for word in done.stdout.split(",")]
    return words if len(words) == len(names) else []


def synchronize(device: torch.device) -> None:
    """Wait for what was launched."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
