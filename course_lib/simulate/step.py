"""Simulate one training step of a layout on a described cluster: time, bubble, exposed bytes, memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from course_lib.compose import Degrees
from course_lib.compose.degrees import AXES, DATA
from course_lib.config import ModelConfig
from course_lib.cost.cluster import Cluster
from course_lib.cost.flops import CONVENTIONS, step_flops
from course_lib.replay import Efficiency, RankClasses, Replay, replay
from course_lib.replay.classes import moved_to
from course_lib.schedules.messages import program
from course_lib.simulate.extend import RECORDED, Recording, extended
from course_lib.simulate.record import kinds_of_places, record_stage
from course_lib.trace import Alloc, Backward, Free, RankTrace

GROUPS = (
    ("dp_shard", "ep", "cp"),
    ("dp_shard", "cp"),
    ("pp", *DATA, "cp"),
    ("pp", "dp_shard", "ep", "cp", "tp"),
)
"""Axes over which a composed step communicates together."""
OUTSIDE = (
    "the library's own step is simulated, not Meta's: nothing fuses norms, RoPE and SwiGLU into one kernel; "
    "tensor-parallel collectives and weights' all_gather overlap with nothing; kernels reach the "
    "stated share of the roof whatever their shape; links are not shared between "
    "streams; no launch gaps, stragglers, checkpoints or failures"
)
"""What a simulated time leaves out."""
EVEN = "; experts that get more tokens than others"
"""What it leaves out of a mixture, too."""
Calls = dict[tuple[str, str, int], tuple[int, int]]
"""(axis, operation, ranks of the group) -> calls, bytes: `CommCall.moved_bytes` of the rank's calls."""


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """Hold what was simulated.

    calls, memory: by pipeline place; memory in bytes by category when the total is highest.
    recorded: the places that ran on fake ranks; the others were laid out from them.
    """

    config: ModelConfig
    degrees: Degrees
    cluster: Cluster
    seq_len: int
    microbatch_size: int
    replay: Replay
    calls: dict[int, Calls]
    memory: dict[int, dict[str, int]]
    recorded: tuple[int, ...]

    @property
    def num_sequences(self) -> int:
        """Sequences of a step, all ranks together."""
        return self.degrees.data_parallel * self.degrees.num_microbatches * self.microbatch_size

    def flops_per_s_per_gpu(self, convention: str = "megatron") -> float:
        """Return model FLOP/s per GPU under a convention of `cost.flops`."""
        flops = step_flops(
            self.config,
            batch_sequences=self.num_sequences,
            seq_len=self.seq_len,
            convention=CONVENTIONS[convention],
        )
        return float(flops) / self.replay.step_s / self.degrees.world_size

    @property
    def shown_places(self) -> list[int]:
        """First, middle and last pipeline place."""
        last = self.degrees.pp - 1
        return sorted({0, last // 2, last})


def simulate_step(
    config: ModelConfig,
    degrees: Degrees,
    cluster: Cluster,
    *,
    seq_len: int,
    microbatch_size: int = 1,
    efficiency: Efficiency | None = None,
    done: Callable[[str], None] = lambda _: None,
) -> Simulation:
    """Record, lay out and replay a step.

    Args:
        efficiency: what share of the datasheet kernels reach.
        done: told each thing that is done, `num_things` of them.
    A mixture's experts get the same number of tokens each: fake tensors have no values to route by.
    Raises: ValueError for degrees that cannot split the model, choices that experts do not divide, too few
        GPUs.
    """
    check(config, degrees, cluster, seq_len, microbatch_size)
    recordings: dict[int, Recording] = {}
    few = replace(degrees, num_microbatches=RECORDED)
    lists, few_lists = (program(d.pipeline_schedule()) for d in (degrees, few))
    for places in kinds_of_places(config, degrees):
        trace = record_stage(
            config,
            few,
            places[0],
            seq_len=seq_len,
            microbatch_size=microbatch_size,
            held_microbatches=degrees.num_microbatches,
        )
        cut = Recording.of(trace, few_lists[places[0]], degrees.pp)
        recordings |= dict.fromkeys(places, cut)
        done(f"stage {places[0] + 1} of {degrees.pp} recorded")
    sizes = {axis: asdict(degrees)[axis] for axis in AXES}
    traces, memory, calls = [], {}, {}
    for place, steps in enumerate(lists):
        trace = extended(recordings[place], steps, degrees.num_microbatches)
        memory[place], calls[place] = trace.at_peak(), _calls(trace)
        traces.append(moved_to(_clock_only(trace), place * (degrees.world_size // degrees.pp), sizes))
        done(f"stage {place + 1} laid out")
    classes = RankClasses.of(sizes, cluster, by=("pp",), groups=GROUPS)
    replayed = replay(classes.trace(traces), cluster, classes=classes, efficiency=efficiency)
    done("replayed")
    return Simulation(
        config=config,
        degrees=degrees,
        cluster=cluster,
        seq_len=seq_len,
        microbatch_size=microbatch_size,
        replay=replayed,
        calls=calls,
        memory=memory,
        recorded=tuple(places[0] for places in kinds_of_places(config, degrees)),
    )


def num_things(config: ModelConfig, degrees: Degrees) -> int:
    """Return how many things `simulate_step` tells of."""
    return len(kinds_of_places(config, degrees)) + degrees.pp + 1


def check(config: ModelConfig, degrees: Degrees, cluster: Cluster, seq_len: int, size: int) -> None:
    """Refuse what `simulate_step` cannot do, before anything is recorded. Raises: ValueError."""
    choices = size * seq_len // degrees.cp * config.experts_per_token
    if config.num_experts and choices % config.num_experts:
        raise ValueError(
            f"the {config.num_experts} experts must divide the choices of a micro-batch's tokens: each gets "
            f"equally many; got {choices:,} on a rank. Use a longer sequence or larger micro-batches."
        )
    if degrees.world_size > cluster.num_devices:
        raise ValueError(
            f"the ranks must fit on the {cluster.num_devices:,} GPUs of {cluster.name}; got "
            f"{degrees.world_size:,}. Use smaller degrees or another cluster."
        )
    if degrees.pp == 1 and degrees.virtual_stages > 1:
        raise ValueError(
            f"virtual stages must come with a pipeline; got {degrees.virtual_stages} and pp=1. "
            "Use pp of 2 or more."
        )
    degrees.check(config, degrees.data_parallel * degrees.num_microbatches * size, seq_len)


def _clock_only(trace: RankTrace) -> RankTrace:
    """Leave out what takes no time."""
    return replace(trace, events=[e for e in trace.events if not isinstance(e, Alloc | Free | Backward)])


def _calls(trace: RankTrace) -> Calls:
    counts: Counter[tuple[str, str, int]] = Counter()
    sizes: Counter[tuple[str, str, int]] = Counter()
    for call in trace.launches():
        if call.op != "new_group" and len(call.group.ranks) > 1:
            key = call.group.axis or "all ranks", call.op, len(call.group.ranks)
            counts[key] += 1
            sizes[key] += call.moved_bytes
    return {key: (counts[key], sizes[key]) for key in counts}
