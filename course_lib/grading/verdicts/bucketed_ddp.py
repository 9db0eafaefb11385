"""`BucketedDDP`: gradients in buckets by a stated rule, sent while backward still computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from course_lib.grading.exercise import Array, Case, Exercise, Part, RankData
from course_lib.grading.overlap import clock_part
from course_lib.grading.toy_oracle import (
    collectives,
    construction_problem,
    events_between,
    later_gates,
    toy_inputs,
    toy_oracle,
)
from course_lib.grading.toys import NUM_STEPS, ToyNet, nbytes, toy_tensors, trainable
from course_lib.trace import Event, Mark, RankTrace, Wait
from course_lib.trace.events import POLLED

EXERCISE = Exercise(
    id="bucketed_ddp",
    lab="03_data_parallel",
    order=3,
    symbol="BucketedDDP",
    title="Buckets that travel while backward computes",
    minutes=30,
    difficulty=4,
    importance=5,
    lines=40,
    points={"values": 3.0, "bytes": 2.0, "order": 2.0, "clock": 1.0},
    graded="Values as for NaiveDDP, and parameters that some ranks or no rank uses (they count as zero "
    "there); gradients are set to None or to zero between steps; models in float64 (hidden: in float32, "
    "too). Bytes: the constructor puts at "
    "most the model once into collectives; a step launches exactly one all_reduce a bucket, of its "
    "bytes by the packing rule, and nothing else. Order, where all parameters are used: when the "
    "last gradient (the first layer's) is ready, every bucket packed before its own has been "
    "launched, and none was waited for or polled. One rank alone may skip all of it. Clock: "
    "replayed on simulated clusters where communication takes half as long as backward (inside a "
    "server) and twice as long (across servers), a step hides at least half of what backward can "
    "hide.",
    closed=(
        "course_lib.parallel",
        "course_lib.grading.supplied_ddp",
        "torch:ddp",
        "torch:fsdp",
        "torch:comm_hooks",
    ),
    signature="(module, bucket_bytes)",
    hints=(
        "Three jobs: pack once in the constructor; in a hook, count the gradients a bucket still misses and "
        "launch it when none is missing; in `sync_gradients`, launch what is left, wait for all, and put "
        "the means into `.grad`.",
        "`param.register_post_accumulate_grad_hook(f)` calls f(param) when param.grad is final for this "
        "backward. dist.all_reduce(flat, async_op=True) returns a Work; keep it and the flat tensor until "
        "you call wait().",
        "Ranks pair their collectives by order of launch, and a rank that does not use a parameter never "
        "gets its hook. So launch bucket i only after bucket i - 1, on every rank, and let sync_gradients "
        "fill the gaps with zeros. Reset all counters there: the second step must start like the first.",
    ),
)

AWKWARD = {"tied": True, "frozen": True, "unused": True, "optional": True, "odd_buffers": True}


CLOCKED = "a bucket a layer"
_KEPT = "every parameter alone, zero_grad(set_to_none=False)"


def cases(seed: int, hidden: bool) -> list[Case]:
    """Bucket sizes that pack unevenly or exactly (448), and each awkward kind of parameter."""
    rows: list[tuple[int, str, int, dict[str, Any], list[int]]] = [
        (1, "plain", 448, {}, []),
        (2, "tied and frozen", 700, {"tied": True, "frozen": True}, []),
        (3, "an uneven last bucket", 450, {"width": 9}, []),
        (2, "one bucket for all", 10**6, {"depth": 2}, []),
        (4, "used by some ranks, or by none", 420, AWKWARD, [1]),
        (4, CLOCKED, 20_000, {"width": 48, "depth": 8}, []),
    ]
    if hidden:
        rows += [
            (5, "tied, used by some ranks, or by none", 600, AWKWARD, [0, 3]),
            (6, _KEPT, 1, {"depth": 2}, []),
            (3, "float32", 450, {"width": 9, "dtype": "float32"}, []),
            (3, "a model of 1.5 MB", 600_000, {"width": 250, "optional": True}, []),
        ]
    return [
        Case(
            world_size=n,
            seed=seed,
            params={
                "model": model,
                "bucket_bytes": size,
                "without_optional": without,
                "keeps_gradients": words == _KEPT,
            },
            label=f"{n} rank{'s' * (n > 1)}, bucket_bytes={size:,}, {words}",
        )
        for n, words, size, model, without in rows
    ]


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """Weights of this rank's own, and its shards of two batches."""
    return toy_inputs(case, rank)


def oracle(case: Case) -> dict[str, Any]:
    """One process on the whole batch."""
    return dict(toy_oracle(case))


def pack(sizes: Sequence[int], bucket_bytes: int) -> list[list[int]]:
    """Pack positions in reverse; a bucket closes when the next one would make it exceed bucket_bytes."""
    buckets: list[list[int]] = []
    used = 0
    for position in reversed(range(len(sizes))):
        if not buckets or used + sizes[position] > bucket_bytes:
            buckets.append([])
            used = 0
        buckets[-1].append(position)
        used += sizes[position]
    return buckets


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """Compare the collectives of each step with the packing rule; read overlap from the order of events."""
    late = later_gates(case, got, want)
    if late:
        return late
    model = ToyNet(**case.params["model"])
    sizes = [nbytes([p]) for p in trainable(model)]
    buckets = pack(sizes, case.params["bucket_bytes"])
    bucket_sizes = [sum(sizes[i] for i in bucket) for bucket in buckets]
    parts = [_bytes(got, nbytes(toy_tensors(model).values()), bucket_sizes)]
    first_layer = next(i for i, p in enumerate(trainable(model)) if p is model.embed.weight)
    own = next(i for i, bucket in enumerate(buckets) if first_layer in bucket)
    if CLOCKED in case.label:
        steps = [_second_step(data.traced) for data in got]
        polled = any(_polls(step.events[: _last_gradient(step.events)]) for step in steps)
        text = "a hook must not poll is_completed(): it keeps backward waiting. Wait in sync_gradients."
        parts.append(Part("clock", False, text) if polled else clock_part([_unpolled(s) for s in steps]))
    elif case.world_size > 1 and own > 0 and model.unused is None:
        parts.append(_order(got, bucket_sizes[:own], len(buckets) - own))
    return parts


def _second_step(trace: RankTrace) -> RankTrace:
    """The last step: the first may hold what happens only once."""
    events = events_between(trace, f"step {NUM_STEPS - 1} begins", f"step {NUM_STEPS - 1} synchronised")
    return dataclasses.replace(trace, events=list(events))


def _polls(events: Sequence[Event]) -> bool:
    return any(isinstance(e, Mark) and e.name == POLLED for e in events)


def _unpolled(step: RankTrace) -> RankTrace:
    """Without the polls: after backward they do what wait() does, and a replay cannot repeat them."""
    return dataclasses.replace(step, events=[e for e in step.events if not _polls([e])])


def _bytes(got: list[RankData], model_bytes: int, wanted: list[int]) -> Part:
    for rank, data in enumerate(got):
        problem = construction_problem(data.traced, model_bytes)
        for step in range(NUM_STEPS):
            problem = problem or _step_problem(data.traced, step, wanted, alone=len(got) == 1)
        if problem:
            return Part("bytes", False, f"on rank {rank} {problem}")
    return Part("bytes", True, f"{len(wanted)} all_reduces, {sum(wanted):,} bytes a step on each rank")


def _step_problem(trace: RankTrace, step: int, wanted: list[int], *, alone: bool) -> str:
    calls = collectives(events_between(trace, f"step {step} begins", f"step {step} synchronised"))
    seen = [call.bytes_ for call in calls]
    others = sorted({call.op for call in calls} - {"all_reduce"})
    if (sorted(seen) == sorted(wanted) and not others) or (alone and not calls):
        return ""
    names = f" ({', '.join(others)} among them)" if others else ""
    return (
        f"the packing rule gives {len(wanted)} all_reduces of {_list(wanted)} bytes; step {step} launched "
        f"{len(seen)} collectives{names} of {_list(seen)} bytes."
    )


def _list(sizes: Sequence[int]) -> str:
    shown = ", ".join(f"{s:,}" for s in sizes[:8])
    return shown + (", ..." if len(sizes) > 8 else "") if sizes else "0"


def _order(got: list[RankData], early: list[int], late: int) -> Part:
    """`early`: bytes of the buckets before the last gradient's own; `late`: how many buckets are left then.

    Either is enough, so that wrong packing or a needless call costs the bytes part and not this one.
    """
    launched = 0
    for rank, data in enumerate(got):
        for step in range(NUM_STEPS):
            events = events_between(data.traced, f"step {step} begins", f"step {step} synchronised")
            before = events[: _last_gradient(events)]
            calls, all_calls = collectives(before), collectives(events)
            launched = len(calls)
            waited = {e.launch_id for e in before if isinstance(e, Wait)} & {call.id for call in all_calls}
            if waited or _polls(before):
                what = f"waited for {len(waited)}" if waited else "polled is_completed()"
                text = (
                    "no bucket may be waited for before the last gradient is ready; "
                    f"rank {rank} {what} in step {step}. Launch with async_op=True in the hook, wait in "
                    "sync_gradients."
                )
                return Part("order", False, text)
            enough = sum(call.bytes_ for call in calls) >= sum(early) or len(all_calls) - launched <= late
            if launched == 0 or not enough:
                text = (
                    f"when the last gradient is ready, the {len(early)} buckets before its own must have "
                    f"been launched; rank {rank} had launched {launched} in step {step}. Communication "
                    "overlaps with backward only if each bucket leaves from a hook, as soon as it is full."
                )
                return Part("order", False, text)
    return Part("order", True, f"{launched} buckets launched before the last gradient, no wait before it")


def _last_gradient(events: Sequence[Event]) -> int:
    return next(i for i, e in enumerate(events) if isinstance(e, Mark) and e.name == "last gradient")
