"""What a run on laptop cores would cost on a described cluster: a trace, replayed in simulated time.

Each rank has a compute clock. Operations advance it by the roofline; communication runs beside it, on one
stream for each group and one for each ordered pair of point-to-point peers. A collective starts when its
last member has launched it and its stream is free; a wait blocks the clock until it has ended. Program order
is all that is taken from the trace, no measured time, so the result is the same to the bit every time.

Real GPUs add kernel launch gaps, contention between compute and communication, and stragglers: calibrate
`Efficiency` before believing absolute numbers. Lab 02 introduces it, every later lab measures with it.
Trace-driven simulators of production: ASTRA-sim, Meta's Chakra, vTrain.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from course_lib.cost.cluster import Cluster
from course_lib.cost.collectives import collective_time_s, full_size_bytes, send_time_s
from course_lib.cost.hardware import precision_name
from course_lib.trace import Trace
from course_lib.trace.events import POLLED, Compute, Event, Launch, Mark, Wait

_ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8": 1}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Efficiency:
    """What share of the datasheet a good kernel reaches.

    matmul: of the peak FLOP/s; 0.8 is what large bf16 matmuls reach on an H100.
    memory: of the memory bandwidth; streaming kernels reach 0.8 to 0.9.
    launch_s: the least time of any operation.
    """

    matmul: float = 0.8
    memory: float = 0.85
    launch_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("matmul", "memory"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must be a fraction in (0, 1]; got {getattr(self, name)}.")
        if self.launch_s < 0:
            raise ValueError(f"launch_s must not be negative seconds; got {self.launch_s}.")


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Something that took simulated time on a rank. lane: "compute", or a communication stream's name."""

    lane: str
    name: str
    phase: str
    start_s: float
    end_s: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankReplay:
    """One rank in simulated seconds.

    compute_s + exposed_s + idle_s = the step. exposed_s: blocked while communication runs. idle_s: blocked
    until others launch their part (a pipeline's bubble), or done before the last rank.
    communication_s: of all its calls, hidden or not.
    """

    rank: int
    spans: list[Span]
    marks: dict[str, float]
    compute_s: float
    communication_s: float
    exposed_s: float
    idle_s: float
    end_s: float
    flops: int
    peak_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replay:
    """A replayed run. Fractions are means over ranks."""

    ranks: list[RankReplay]
    step_s: float
    peak_flops_per_s: float

    @property
    def exposed_s(self) -> float:
        """Seconds a rank is blocked by communication that runs; mean over ranks."""
        return sum(r.exposed_s for r in self.ranks) / len(self.ranks)

    @property
    def overlap_fraction(self) -> float:
        """Share of communication time that compute hides; 1 if there is none."""
        total_s = sum(r.communication_s for r in self.ranks)
        return 1.0 - sum(r.exposed_s for r in self.ranks) / total_s if total_s else 1.0

    @property
    def bubble_fraction(self) -> float:
        """Share of the step in which a rank only waits for others to begin or to end."""
        return sum(r.idle_s for r in self.ranks) / (self.step_s * len(self.ranks)) if self.step_s else 0.0

    @property
    def peak_bytes(self) -> int:
        """The most live bytes on any rank."""
        return max(r.peak_bytes for r in self.ranks)

    def mfu(self, model_flops: float | None = None) -> float:
        """Model FLOPs of the step over what the cluster's peak could have done in the same time.

        Without `model_flops` (of all ranks together), the FLOPs of the trace: recomputation counts, so that
        it is the hardware FLOPs utilisation (HFU).
        """
        flops = sum(r.flops for r in self.ranks) if model_flops is None else model_flops
        return flops / (self.step_s * self.peak_flops_per_s * len(self.ranks)) if self.step_s else 0.0


def replay(
    trace: Trace,
    cluster: Cluster,
    *,
    placement: Sequence[int] | None = None,
    precision: str | None = None,
    efficiency: Efficiency | None = None,
) -> Replay:
    """Replay a trace on a cluster.

    Args:
        trace: of `run_ranks(..., trace=True)`.
        cluster: what to simulate.
        placement: the cluster's GPU of each rank; by default rank r on GPU r.
        precision: simulate all floating point work in this dtype ("bfloat16", "bf16"); bytes shrink
            accordingly.
        efficiency: share of the datasheet that kernels reach.

    Raises:
        ValueError: a wait for a call that some member never launches, a program that polls `is_completed`
            (its order depends on time), a recv from any source, a placement that does not fit, a precision
            that is no dtype.
    """
    if placement is not None:
        cluster = cluster.placed(placement)
    cluster.devices_of(range(trace.world_size))  # raises if the ranks do not fit
    dtype = None if precision is None else precision_name(precision)
    if dtype is not None and dtype not in _ITEM_BYTES:
        raise ValueError(f"precision must be one of {', '.join(_ITEM_BYTES)}; got {precision!r}. Choose one.")
    run = _Run(trace, cluster, dtype, efficiency or Efficiency())
    run.all_ranks()
    return run.result()


class _Run:
    def __init__(self, trace: Trace, cluster: Cluster, precision: str | None, efficiency: Efficiency) -> None:
        self.trace, self.cluster = trace, cluster
        self.precision, self.efficiency = precision, efficiency
        n = trace.world_size
        self.clock = [0.0] * n
        self.at = [0] * n  # the next event of each rank
        self.compute_s, self.comm_s = [0.0] * n, [0.0] * n
        self.exposed_s, self.idle_s = [0.0] * n, [0.0] * n
        self.flops = [0] * n
        self.spans: list[list[Span]] = [[] for _ in range(n)]
        self.marks: list[dict[str, float]] = [{} for _ in range(n)]
        self.keys: list[dict[int, Any]] = [{} for _ in range(n)]  # launch id -> meeting
        self.arrived: dict[Any, dict[int, tuple[float, Launch]]] = defaultdict(dict)
        self.ended: dict[Any, tuple[float, float]] = {}  # meeting -> (all launched, end)
        self.free_s: dict[Any, float] = defaultdict(float)  # stream -> when it is free
        self.waiting: dict[Any, list[int]] = defaultdict(list)
        self._seconds: dict[Any, float] = {}
        self._rates: dict[str, tuple[float, float]] = {}

    def all_ranks(self) -> None:
        ready = list(range(self.trace.world_size))
        while ready:
            rank = ready.pop()
            ready += self._advance(rank)
        for rank, trace in enumerate(self.trace.ranks):
            if self.at[rank] < len(trace.events):
                self._refuse(rank)

    def _advance(self, rank: int) -> list[int]:
        """Run a rank until it blocks or ends; return the ranks that its launches have released."""
        events = self.trace.ranks[rank].events
        released: list[int] = []
        while self.at[rank] < len(events):
            event = events[self.at[rank]]
            if isinstance(event, Compute):
                self._compute(rank, event)
            elif isinstance(event, Launch):
                released += self._launch(rank, event)
            elif isinstance(event, Wait):
                meeting = self.keys[rank].get(event.launch_id)
                if meeting is not None and meeting not in self.ended:
                    self.waiting[meeting].append(rank)
                    return released
                self._wait(rank, meeting)
            elif isinstance(event, Mark):
                if event.name == POLLED:
                    raise ValueError(
                        "a program to be replayed must not poll is_completed(): what it does then depends on "
                        f"time; rank {rank} polls. Use wait()."
                    )
                self.marks[rank][event.name] = self.clock[rank]
            self.at[rank] += 1
        return released

    # ---- compute

    def _compute(self, rank: int, event: Compute) -> None:
        flops_per_s, scale = self._rate(event.dtype)
        bandwidth = self.cluster.accelerator.memory_bandwidth_bytes_per_s * self.efficiency.memory
        seconds = max(
            event.flops / flops_per_s if event.flops else 0.0,
            event.bytes_ * scale / bandwidth,
            self.efficiency.launch_s,
        )
        start_s = self.clock[rank]
        self.clock[rank] += seconds
        self.compute_s[rank] += seconds
        self.flops[rank] += event.flops
        self.spans[rank].append(Span("compute", event.name, event.phase, start_s, self.clock[rank]))

    def _rate(self, dtype: str) -> tuple[float, float]:
        """FLOP/s reached with tensors of `dtype`, and what their bytes are multiplied with."""
        if dtype not in self._rates:
            is_float = dtype in _ITEM_BYTES
            simulated = self.precision if self.precision and is_float else dtype if is_float else "float32"
            peak = self.cluster.accelerator.peak_flops_per_s(simulated)
            scale = _ITEM_BYTES[simulated] / _ITEM_BYTES[dtype] if self.precision and is_float else 1.0
            self._rates[dtype] = (peak * self.efficiency.matmul, scale)
        return self._rates[dtype]

    # ---- communication

    def _launch(self, rank: int, call: Launch) -> list[int]:
        if call.op == "new_group":
            return []
        meeting, members = self._meeting(call)
        self.keys[rank][call.id] = meeting
        self.arrived[meeting][rank] = (self.clock[rank], call)
        if len(self.arrived[meeting]) < members:
            return []
        self._run_call(meeting)
        return self.waiting.pop(meeting, [])

    def _meeting(self, call: Launch) -> tuple[Any, int]:
        """What identifies the same call on all its ranks, and how many ranks that are."""
        if call.op in ("send", "recv"):
            if call.src is None:
                raise ValueError(
                    "a recv from any source cannot be replayed: which send it takes depends on time. "
                    "Name the source."
                )
            return ("p2p", call.group, call.src, call.dst, call.tag, call.ordinal), 2
        return ("group", call.group, call.ordinal), len(call.group.ranks)

    def _run_call(self, meeting: Any) -> None:
        arrived = self.arrived.pop(meeting)
        stream = meeting[:4] if meeting[0] == "p2p" else meeting[:2]
        launched_s = max(t for t, _ in arrived.values())
        call = next(iter(arrived.values()))[1]
        start_s = max(launched_s, self.free_s[stream])
        end_s = start_s + self._call_s(call)
        self.free_s[stream] = end_s
        self.ended[meeting] = (launched_s, end_s)
        lane = f"{call.src} to {call.dst}" if meeting[0] == "p2p" else str(call.group)
        for rank, (_, own) in arrived.items():
            self.comm_s[rank] += end_s - start_s
            self.spans[rank].append(Span(lane, own.op, own.phase, start_s, end_s))

    def _call_s(self, call: Launch) -> float:
        size_bytes = call.bytes_ * self._rate(call.dtype)[1] if call.dtype else 0.0
        if size_bytes == 0 and call.op != "barrier":
            return 0.0
        key = (call.op, call.group.ranks, call.src, call.dst, size_bytes)
        if key not in self._seconds:
            self._seconds[key] = self._cost_s(call, size_bytes)
        return self._seconds[key]

    def _cost_s(self, call: Launch, size_bytes: float) -> float:
        if call.op in ("send", "recv"):
            return send_time_s(self.cluster, call.src or 0, call.dst or 0, size_bytes)
        ranks = call.group.ranks
        if call.root is not None:  # the cost model takes the root as the first
            ranks = (call.root, *(r for r in ranks if r != call.root))
        return collective_time_s(
            self.cluster, call.op, ranks, full_size_bytes(call.op, size_bytes, len(ranks))
        )

    def _wait(self, rank: int, meeting: Any) -> None:
        if meeting is None:
            return
        launched_s, end_s = self.ended[meeting]
        now_s = self.clock[rank]
        if end_s > now_s:
            self.idle_s[rank] += max(0.0, launched_s - now_s)
            self.exposed_s[rank] += end_s - max(now_s, launched_s)
            self.clock[rank] = end_s

    def _refuse(self, rank: int) -> None:
        event: Event = self.trace.ranks[rank].events[self.at[rank]]
        assert isinstance(event, Wait)
        meeting = self.keys[rank][event.launch_id]
        call = self.arrived[meeting][rank][1]
        raise ValueError(
            f"a trace must be complete to be replayed; rank {rank} waits for {call.op} "
            f"#{call.ordinal + 1} of {call.group}, which only ranks {sorted(self.arrived[meeting])} launch. "
            "Record the whole run."
        )

    def result(self) -> Replay:
        step_s = max(self.clock)
        ranks = [
            RankReplay(
                rank=r,
                spans=self.spans[r],
                marks=self.marks[r],
                compute_s=self.compute_s[r],
                communication_s=self.comm_s[r],
                exposed_s=self.exposed_s[r],
                idle_s=self.idle_s[r] + step_s - self.clock[r],
                end_s=self.clock[r],
                flops=self.flops[r],
                peak_bytes=self.trace.ranks[r].peak_bytes(),
            )
            for r in range(self.trace.world_size)
        ]
        precision = self.precision or _main_dtype(self.trace)
        return Replay(
            ranks=ranks,
            step_s=step_s,
            peak_flops_per_s=self.cluster.accelerator.peak_flops_per_s(precision),
        )


def _main_dtype(trace: Trace) -> str:
    """The dtype of most FLOPs."""
    flops: dict[str, int] = defaultdict(int)
    for event in trace.ranks[0].of(Compute):
        flops[event.dtype] += event.flops
    floats = {d: f for d, f in flops.items() if d in _ITEM_BYTES}
    return max(floats, key=lambda d: floats[d], default="float32")
