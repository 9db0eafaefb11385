"""What training with a sharded optimizer must give, move and hold. Verdict side of lab 04 only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.exercise import Array, Case, Part, RankData, Want, rng
from course_lib.grading.measure import between
from course_lib.grading.toy_oracle import collectives, events_between
from course_lib.grading.toys import ToyNet, build_toy, toy_weights, trainable
from course_lib.grading.zero_toys import SAMPLES, STATES, STEPS, loss_of, make_inner, weights_of
from course_lib.trace import Alloc, Free, Launch, Mark, RankTrace

ITEM = 8  # bytes of a float64
SUMMED = "gradients are summed and not divided: did you average?"
CLOSED = (
    "course_lib.parallel",
    "course_lib.comm.flat",
    "course_lib.grading.zero_oracle",
    "torch:zero",
    "torch:fsdp",
    "torch:ddp",
)


def zero_case(
    n: int, seed: int, optimizer: str, microbatches: int = 1, *, optional_from: int = 0, **model: Any
) -> Case:
    """A case of n ranks; `model`: options of ToyNet beside the usual width and depth.

    `optional_from`: the first step that uses the optional layer. Not with Adam: its correction counts the
    steps of each tensor, so a flat shard would differ from one process.
    """
    shape = {"width": 24, "depth": 7, **model}
    more = f", {microbatches} backwards a step" if microbatches > 1 else ""
    kinds = "".join(f", {kind}" for kind in ("tied", "frozen", "unused") if model.get(kind))
    kinds += ", a layer that only later steps use" if optional_from else ""
    return Case(
        world_size=n,
        seed=seed,
        params={
            "model": shape | ({"optional": True} if optional_from else {}),
            "optimizer": optimizer,
            "microbatches": microbatches,
            "optional_from": optional_from,
        },
        label=f"{n} rank{'s' * (n > 1)}, {optimizer}{more}{kinds}",
    )


def zero_inputs(case: Case, rank: int) -> dict[str, Array]:
    """Rank 0's weights on every rank, and this rank's micro-batches."""
    arrays = toy_weights(case.params["model"], rng(case, 0))
    draw = rng(case, rank + 1000)
    for step in range(STEPS):
        for micro in range(case.params["microbatches"]):
            arrays[f"x{step}.{micro}"] = draw.normal(size=(SAMPLES, 5))
            arrays[f"y{step}.{micro}"] = draw.normal(size=(SAMPLES, 3))
    return arrays


def zero_oracle(case: Case) -> dict[str, Any]:
    """One process on all ranks' batches, and what known mistakes give."""
    n = case.world_size
    shards = [{k: torch.from_numpy(v) for k, v in zero_inputs(case, r).items()} for r in range(n)]
    right = train(case, shards, 1 / n)
    summed = train(case, shards, 1.0)
    alone = [train(case, [shard], 1.0) for shard in shards]
    last = train(case, shards, 1 / n, only_last=True)
    many = case.params["microbatches"] > 1
    return {
        name: Want(
            value,
            alone=[a[name] for a in alone] if n > 1 else None,
            near=({SUMMED: summed[name]} if n > 1 else {})
            | ({"only the last backward of a step counts": last[name]} if many else {}),
        )
        for name, value in right.items()
    }


def train(
    case: Case, shards: Sequence[Mapping[str, Tensor]], scale: float, *, only_last: bool = False
) -> dict[str, Array]:
    """Train one model on the sum over shards of scale * loss; return each parameter after each step."""
    model = build_toy(case.params["model"], shards[0])
    optimizer = make_inner(case.params["optimizer"], trainable(model))
    num: int = case.params["microbatches"]
    out: dict[str, Array] = {}
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro in range(num - 1 if only_last else 0, num):
            for shard in shards:
                late = step >= case.params["optional_from"]
                (scale * loss_of(model, shard, step, micro, num, with_optional=late)).backward()
        optimizer.step()
        out |= weights_of(model, step)
    return out


# ---- what may move and stay


def bytes_part(case: Case, got: list[RankData], *, num_reductions: int) -> Part:
    """Judge the bytes that collectives move: P elements a reduction and P for the parameters."""
    n, sizes = case.world_size, _sizes(case)
    elements = sum(sizes) + n * len(sizes)
    bound = (num_reductions + 1) * ITEM * elements
    if n == 1:
        return Part("bytes", True, "one rank is free to skip them")
    for rank, data in enumerate(got):
        start = sum(_moved(call, n) for call in _calls(data.traced, "built", "constructed"))
        if start > ITEM * elements:
            text = (
                f"the constructor may move at most {ITEM * elements:,} bytes (each parameter once); rank "
                f"{rank} moved {start:,}."
            )
            return Part("bytes", False, text)
    counts = [max(sum(_moved(c, n) for c in _calls(data.traced, a, b)) for a, b in _steps()) for data in got]
    why = "Reduce_scatter brings each rank its part of the gradients, an all_gather the new parameters back; "
    why += "an all_reduce of gradients counts double, as it sends them twice"
    return between("bytes", counts, 0, bound, what="bytes moved in a step", why=why)


def _steps() -> list[tuple[str, str]]:
    names = ["constructed", *(f"end {step}" for step in range(STEPS))]
    return list(pairwise(names))


def _calls(trace: RankTrace, start: str | None, end: str) -> list[Launch]:
    return collectives(events_between(trace, start, end))


def _moved(call: Launch, world_size: int) -> int:
    """Bytes of the whole buffer, as often as a ring sends it."""
    if call.op.startswith("all_gather"):
        return call.bytes_ * world_size
    return {"all_reduce": 2, "recv": 0}.get(call.op, 1) * call.bytes_


def memory_part(case: Case, got: list[RankData], *, with_gradients: bool) -> Part:
    """Judge the optimizer's state and what lives beyond the model; with_gradients: in backward too.

    The state is what torch optimizers hold; all else that a student keeps counts in the second bound.
    """
    if case.world_size == 1:
        return Part("memory", True, "one rank holds everything")
    sizes, states = _sizes(case), STATES[case.params["optimizer"]]
    shard = -(-sum(sizes) // case.world_size) + len(sizes)
    small = 64 * len(sizes)
    owned = -(-sum(sizes) // case.world_size) + max(sizes)  # also where each rank owns whole parameters
    held = [_peak_of_state(d.traced) for d in got]
    name = case.params["optimizer"]
    why = f"{name} keeps {states} values a parameter; build it on this rank's shard alone"
    what = "bytes of optimizer state at any time"
    part = between("memory", held, 0, ITEM * states * owned + small, what=what, why=why)
    if not part.ok:
        return part
    bound = ITEM * (states + 2) * shard + small
    why = (
        f"{name} keeps {states} values a parameter: {states} shards, one for a copy of the parameters, one "
        "for gradients. What has the size of the model may not stay"
    )
    parts = [part, _held(got, "end", bound, "after step and zero_grad", why)]
    if with_gradients:
        why = f"{why}: reduce each gradient in its hook, then set .grad to None and drop the buffer"
        parts += [
            _held(got, "backward", bound + 2 * ITEM * max(sizes), "at the end of backward", why),
            _peak_of_backward(got, bound + 8 * ITEM * max(sizes), why),
            _reduced_in_backward(case, got),
        ]
    return next((p for p in parts if not p.ok), parts[-1])


def _peak_of_state(trace: RankTrace) -> int:
    """The most that torch optimizers ever hold: a state that only steps see is put aside in between."""
    live = peak = 0
    for event in trace.events:
        if isinstance(event, Alloc | Free) and event.category == "optimizer":
            live += event.bytes_ if isinstance(event, Alloc) else -event.bytes_
            peak = max(peak, live)
    return peak


def _reduced_in_backward(case: Case, got: list[RankData]) -> Part:
    """Judge what has been sent when backwards have ended: the rest is kept whole, if not in tensors."""
    n, named = case.world_size, ToyNet(**case.params["model"]).named_parameters()
    idle = ("unused", "optional")  # at least in some step
    used = [p.numel() for name, p in named if p.requires_grad and not name.startswith(idle)]
    least = (n - 1) * ITEM * case.params["microbatches"] * (sum(used) - 2 * max(used))
    for step, (start, _) in enumerate(_steps()):
        calls = [call for data in got for call in _calls(data.traced, start, f"backward {step}")]
        seen = sum(_moved(call, n) for call in calls)
        if seen < least:
            text = (
                f"when backward ends, the ranks together must have moved at least {least:,} bytes of "
                f"gradients (all but two of the largest parameter); they moved {seen:,}. A gradient that "
                "was not reduced is kept whole, wherever it is: reduce each in its hook."
            )
            return Part("memory", False, text)
    return Part("memory", True, "gradients are reduced before backward ends")


def _held(got: list[RankData], mark: str, bound: int, when: str, why: str) -> Part:
    counts = [
        max(d.traced.live_bytes_at(f"{mark} {step}") for step in range(STEPS))
        - d.traced.live_bytes_at("built")
        for d in got
    ]
    what = f"live bytes beyond the model {when}"
    return between("memory", [max(0, c) for c in counts], 0, bound, what=what, why=why)


def _peak_of_backward(got: list[RankData], bound: int, why: str) -> Part:
    """Judge the most that ever lives beside model and activations from a step's first forward to its end."""
    counts = []
    for data in got:
        starts = ["constructed", *(f"end {step}" for step in range(STEPS - 1))]
        peaks = [_peak(data.traced, start, f"backward {step}") for step, start in enumerate(starts)]
        counts.append(max(0, max(peaks) - data.traced.live_bytes_at("built")))
    what = "live bytes beyond the model and its activations at any time of backward"
    return between("memory", counts, 0, bound, what=what, why=why)


def _peak(trace: RankTrace, start: str, end: str) -> int:
    events = trace.events
    first = next(i for i, e in enumerate(events) if isinstance(e, Mark) and e.name == start)
    live, peak = 0, 0
    for place, event in enumerate(events):
        if isinstance(event, Alloc | Free) and event.category != "activations":
            live += event.bytes_ if isinstance(event, Alloc) else -event.bytes_
        if place >= first:
            peak = max(peak, live)
        if isinstance(event, Mark) and event.name == end:
            break
    return peak


def _sizes(case: Case) -> list[int]:
    return [p.numel() for p in trainable(ToyNet(**case.params["model"]))]
