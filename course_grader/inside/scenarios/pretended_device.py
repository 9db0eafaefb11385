"""Have an answer time a device whose clock is a number: impl(fn, *, clock, synchronize, warmup, repeats).

Time passes in three places: a call takes `launch_s` on the host, the device works through its queue in order,
and `synchronize` waits until the queue is empty. Reading the clock is free. A point with "again" measures the
same fn as the point before it: the device has cooled down in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from course_grader.inside.probe import Probe


class Device:
    """A host that launches and a device that works later."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def start(self, launch_s: float, device_s: Sequence[float], busy_s: float) -> None:
        """Begin a measurement: cold, nothing counted, and somebody else's work in the queue.

        device_s: the duration of each call on the device, in order; later calls repeat the last.
        """
        self.launch_s, self.device_s = launch_s, device_s
        self.idle_from_s = self.now_s + busy_s
        self.num_calls, self.num_clock_reads = 0, 0

    def fn(self) -> None:
        """Enqueue one piece of work."""
        self.now_s += self.launch_s
        work_s = self.device_s[min(self.num_calls, len(self.device_s) - 1)]
        self.idle_from_s = max(self.now_s, self.idle_from_s) + work_s
        self.num_calls += 1

    def clock(self) -> float:
        """Read the host's clock, s."""
        self.num_clock_reads += 1
        return self.now_s

    def synchronize(self) -> None:
        """Wait until the device has nothing left to do."""
        self.now_s = max(self.now_s, self.idle_from_s)


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Return, for each point, the seconds, and how often fn and the clock were called."""
    del inputs, probe
    device, answers = Device(), []
    fn = device.fn
    for point in params["points"]:
        if not point["again"]:
            device = Device()
            fn = device.fn  # the same object, if it is measured again
        device.start(point["launch_s"], point["device_s"], point["busy_s"])
        seconds = impl(
            fn,
            clock=device.clock,
            synchronize=device.synchronize,
            warmup=point["warmup"],
            repeats=point["repeats"],
        )
        counts = {"calls": device.num_calls, "clock_reads": device.num_clock_reads}
        answers.append({"seconds": seconds, **counts})
    return {"answers": answers}
