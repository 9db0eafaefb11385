"""Run `measure` on a device whose clock is a number: calls only enqueue, the first ones are slow.

No communication. Time passes in three places: a call takes `launch_s` on the host, the device works through
its queue in order, and `synchronize` waits until the queue is empty. Reading the clock is free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from course_lib.grading.probe import Probe


class Device:
    """A host that launches and a device that works later."""

    def __init__(self, launch_s: float, device_s: list[float]) -> None:
        """Take the duration of each call on the device, in order; later calls repeat the last."""
        self.launch_s, self.device_s = launch_s, device_s
        self.now_s, self.idle_from_s = 100.0, 0.0
        self.start()

    def start(self, busy_s: float = 0.0) -> None:
        """Begin a measurement: cold, nothing counted, and somebody else's work in the queue."""
        self.idle_from_s = self.now_s + busy_s
        self.num_calls, self.num_clock_reads, self.num_synchronizes = 0, 0, 0

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
        self.num_synchronizes += 1
        self.now_s = max(self.now_s, self.idle_from_s)


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Time one device a point, twice in a row: it has cooled down in between, and is slower then."""
    del inputs, probe
    answers = []
    for point in params["points"]:
        device = Device(point["launch_s"], point["device_s"])
        fn = device.fn  # the same object twice
        for device_s in (point["device_s"], point["again_s"]):
            device.device_s = device_s
            device.start(point["busy_s"])
            seconds = impl(
                fn,
                clock=device.clock,
                synchronize=device.synchronize,
                warmup=point["warmup"],
                repeats=point["repeats"],
            )
            answers.append(
                {
                    "seconds": seconds,
                    "calls": device.num_calls,
                    "clock_reads": device.num_clock_reads,
                    "synchronizes": device.num_synchronizes,
                }
            )
    return {"answers": answers}
