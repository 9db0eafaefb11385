"""What a chain of units must compute, move and hold when it is sharded. Verdict side of lab 05 only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_lib.grading.exercise import Array, Case, Part, RankData, Want, rng
from course_lib.grading.fsdp_toys import SHARD, WHOLE, dtype_of, loss_gradient, owner_at, toy_units
from course_lib.grading.toy_oracle import collectives, events_between
from course_lib.trace import Alloc, Free, Launch, Mark, RankTrace

SAMPLES = 2  # of a rank
CLOSED = (
    "course_lib.parallel",
    "course_lib.comm.flat",
    "course_lib.grading.fsdp_oracle",
    "torch:zero",
    "torch:fsdp",
    "torch:ddp",
    "torch:dtensor",
)


def fsdp_case(
    n: int, seed: int, kinds: Sequence[str], *, width: int = 47, placement: str = "shards", **params: Any
) -> Case:
    """A case of n ranks and units of these kinds."""
    odd = [kind for kind in dict.fromkeys(kinds) if kind != "layer"]
    words = f", {', '.join(odd)} among them" if odd else ""
    more = "".join(f", {name} {value}" for name, value in params.items())
    return Case(
        world_size=n,
        seed=seed,
        params={"kinds": list(kinds), "width": width, "placement": placement, **params},
        label=f"{n} rank{'s' * (n > 1)}, {len(kinds)} units of width {width}{words}{more}",
    )


def item(case: Case) -> int:
    """Bytes of an element."""
    return np.dtype(dtype_of(case.params)).itemsize


def shape_of(case: Case, index: int) -> tuple[int, bool]:
    """Number of a unit's parameters, and whether it trains."""
    return _shape_of(case.params["kinds"][index], case.params["width"])


@cache
def _shape_of(kind: str, width: int) -> tuple[int, bool]:
    (unit,) = toy_units({"kinds": [kind], "width": width})
    return unit.numel, unit.trains


# ---- data


def flats(case: Case) -> list[Array]:
    """The parameters of every unit, end to end; order one."""
    draw = rng(case, 1000)
    width = case.params["width"]
    spread = 1 / np.sqrt(width)
    shapes = [shape_of(case, i)[0] for i in range(len(case.params["kinds"]))]
    return [draw.normal(0.1, spread, numel).astype(dtype_of(case.params)) for numel in shapes]


def shard_of(case: Case, index: int, flat: Array, rank: int) -> Array:
    """What a rank keeps of a unit's vector."""
    n = case.world_size
    if case.params["placement"] == "owners":
        return flat if owner_at(index, n) == rank else flat[:0]
    size = -(-len(flat) // n)
    return np.pad(flat, (0, n * size - len(flat)))[rank * size : (rank + 1) * size]


def fsdp_inputs(case: Case, rank: int) -> dict[str, Array]:
    """This rank's shards and samples."""
    shards = {f"{SHARD}{i}": shard_of(case, i, flat, rank).copy() for i, flat in enumerate(flats(case))}
    return {**shards, **samples(case, rank)}


def samples(case: Case, rank: int) -> dict[str, Array]:
    """This rank's samples and their targets."""
    draw, shape = rng(case, rank), (SAMPLES, case.params["width"])
    return {name: draw.normal(size=shape).astype(dtype_of(case.params)) for name in ("x", "y")}


# ---- values


@dataclass(frozen=True)
class Local:
    """What each rank's own samples give in one process: its output; the gradient of its loss, by unit."""

    outputs: list[Array]
    grads: list[list[Array]]


def run_alone(case: Case, *, backward: bool = True) -> Local:
    """Run the chain on every rank's samples, one after the other, by autograd over the whole chain."""
    units = toy_units(case.params)
    for unit, flat in zip(units, flats(case), strict=True):
        unit.full = torch.from_numpy(flat)
    found = Local([], [])
    for rank in range(case.world_size):
        arrays = {name: torch.from_numpy(a) for name, a in samples(case, rank).items()}
        x = arrays["x"]
        for unit in units:
            x = unit.forward(x)
        found.outputs.append(x.numpy())
        grad: Tensor | None = loss_gradient(arrays, x)
        grads: list[Array] = []
        for unit in reversed(units) if backward else ():
            assert grad is not None
            grad, flat_grad = unit.backward(grad)
            grads.insert(0, np.zeros(unit.numel) if flat_grad is None else flat_grad.numpy())
        found.grads.append(grads)
    return found


def gradient_wants(case: Case, local: list[list[Array]]) -> dict[str, Any]:
    """The mean gradient of every shard, and what known mistakes leave there."""
    wants = {}
    for i in range(len(case.params["kinds"])):
        if shape_of(case, i)[1]:
            total = np.sum([grads[i] for grads in local], axis=0)
            wants[f"grad:shard of unit {i}"] = _per_shard(case, i, total, [grads[i] for grads in local])
    return wants


def kept_wants(case: Case) -> dict[str, Any]:
    """What every rank keeps of each unit, as it was."""
    ranks = range(case.world_size)
    return {
        f"shard of unit {i}": Want([shard_of(case, i, flat, rank) for rank in ranks], per_rank=True)
        for i, flat in enumerate(flats(case))
    }


def updated_wants(case: Case, lr: float) -> dict[str, Any]:
    """Every shard after a step of SGD with the mean gradient, and what known mistakes leave there."""
    all_grads = gradient_wants(case, run_alone(case).grads)
    return {
        name: _stepped(want.value, all_grads[f"grad:{name}"], lr) if f"grad:{name}" in all_grads else want
        for name, want in kept_wants(case).items()
    }


def _stepped(before: list[Array], grads: Want, lr: float) -> Want:
    def step(shards: list[Array]) -> list[Array]:
        return [flat - lr * grad for flat, grad in zip(before, shards, strict=True)]

    near = {words: step(shards) for words, shards in grads.near.items()}
    near |= {
        "nothing was updated": before,
        "the step goes up the gradient": [
            flat + lr * grad for flat, grad in zip(before, grads.value, strict=True)
        ],
    }
    return Want(step(grads.value), per_rank=True, near=near)


def _per_shard(case: Case, index: int, total: Array, local: list[Array]) -> Want:
    n = case.world_size

    def shards(flat: Array) -> list[Array]:
        return [shard_of(case, index, flat, rank) for rank in range(n)]

    if n == 1:
        return Want(shards(total), per_rank=True)
    alone = [shard_of(case, index, flat, rank) for rank, flat in enumerate(local)]
    near = {
        "gradients are summed and not divided: did you average?": shards(total),
        "gradients are divided by world_size twice": shards(total / n**2),
        "only your own gradients count, divided by world_size": [own / n for own in alone],
    }
    return Want(shards(total / n), per_rank=True, alone=alone, near=near)


# ---- bytes


def unit_bytes(case: Case, index: int) -> int:
    """Bytes of a unit's whole vector, padding included."""
    numel, n = shape_of(case, index)[0], case.world_size
    return item(case) * (numel if case.params["placement"] == "owners" else n * -(-numel // n))


def sizes(case: Case, *, trained_only: bool = False) -> list[int]:
    """Bytes of the whole vectors of all units."""
    indices = range(len(case.params["kinds"]))
    return [unit_bytes(case, i) for i in indices if shape_of(case, i)[1] or not trained_only]


def turns(case: Case, phase: str, *, kept_last: bool = False) -> list[tuple[str, int]]:
    """Marks at which units compute, in order, and the bytes that must come for each (kept last: none)."""
    found = [(f"{phase} {i}", size) for i, size in enumerate(sizes(case))]
    if kept_last:
        found[-1] = (found[-1][0], 0)
    return found if phase == "forward" else found[::-1]


def least_backward(case: Case, *, kept_last: bool = False) -> int:
    """Bytes that a backward needs: parameters down to the first unit that trains, and gradients."""
    every = range(len(case.params["kinds"]))
    first = next((i for i in every if shape_of(case, i)[1]), len(every))
    needed = sizes(case)[first : len(every) - kept_last]
    return sum(needed) + sum(sizes(case, trained_only=True))


def moved(call: Launch, world_size: int) -> int:
    """Bytes of the whole buffer of a call, as often as a ring sends it."""
    if call.op.startswith(("all_gather", "gather")):
        return call.bytes_ * world_size
    return {"all_reduce": 2, "recv": 0}.get(call.op, 1) * call.bytes_


PARAMETERS = ("broadcast", "all_gather", "all_gather_single", "send", "recv", "scatter")


def bytes_part(
    case: Case, got: list[RankData], *, parameters: int, gradients: int, why: str, least: int | None = None
) -> Part:
    """Judge the bytes that each rank's collectives move, and all ranks' together.

    parameters, gradients: what a rank may move. least: what it cannot do without; parameters and gradients if
    None. What did not come over the wire was kept, or others computed with it: that costs the memory.
    """
    n = case.world_size
    if n == 1:
        return Part("bytes", True, "one rank may skip communication")
    bound, found = parameters + gradients, [_calls(data) for data in got]
    seen = [sum(moved(call, n) for call in calls) for calls in found]
    rank = max(range(n), key=lambda r: seen[r])
    if seen[rank] > bound:
        text = (
            f"rank {rank} may move at most {bound:,} bytes ({parameters:,} of parameters, {gradients:,} of "
            f"gradients); it moved {seen[rank]:,} with {', '.join(sorted({c.op for c in found[rank]}))}. "
            f"{why}"
        )
        return Part("bytes", False, text)
    least = (n - 1) * (bound if least is None else least)  # each byte is known to one rank, and all need it
    if sum(seen) < least:
        text = (
            f"the ranks together must move at least {least:,} bytes, for each computes with all parameters "
            f"and keeps a part of them; they moved {sum(seen):,}. Gather each unit when its turn comes, on "
            "every rank."
        )
        return Part("memory", False, text)
    return Part("bytes", True, f"at most {seen[rank]:,} bytes moved by a rank")


def _calls(data: RankData, end: str = "ends") -> list[Launch]:
    return collectives(events_between(data.traced, "begins", end))


# ---- memory


def memory_part(
    case: Case,
    got: list[RankData],
    phase: str,
    *,
    vectors: int,
    why: str,
    gathered: Sequence[tuple[str, int]],
    ahead: int = 1,
    beside: Callable[[int], int] = lambda _: 0,
) -> Part:
    """Judge what lives, beyond what lived at the mark "begins", each time a unit computes.

    vectors: how many whole vectors (parameters or gradients of a unit) may live at once. gathered: every mark
    at which a unit computes, in order, and the bytes that have to come for it. ahead: how many units may have
    come, the one that computes among them. beside: unit -> bytes that may live beside the vectors.
    """
    problem = _computed_once(case, got, phase)
    if problem:
        return Part("memory", False, problem)
    if case.world_size == 1:
        return Part("memory", True, "one rank may keep everything")
    held = [_held(data.traced) for data in got]
    bounds = [allowed(case, vectors) + beside(i) for i in range(len(case.params["kinds"]))]
    for i, bound in enumerate(bounds):
        for rank, at_mark in enumerate(held):
            bytes_ = at_mark.get(f"{phase} {i}", 0)  # a mark that need not be met
            if bytes_ > bound:
                when = f"when unit {i} begins its {phase}"
                return Part("memory", False, _too_much(rank, when, bytes_, bound, why))
    problem = _out_of_sight(case, got, gathered, allowed(case, ahead), why)
    if problem:
        return Part("memory", False, problem)
    return Part("memory", True, f"at most {max(bounds):,} bytes live beyond the shards when a unit computes")


def _out_of_sight(
    case: Case, got: list[RankData], gathered: Sequence[tuple[str, int]], bound: int, why: str
) -> str:
    """Say what has come before its time: it is kept somewhere, if not in tensors."""
    total = sum(bytes_ for _, bytes_ in gathered)
    for rank, data in enumerate(got):
        names = {m.name for m in data.traced.of(Mark)}
        used = 0
        if _arrived(case, data, "ends") > total:
            continue  # wasteful, which costs the bytes
        for mark, bytes_ in gathered:
            ahead = _arrived(case, data, mark) - used if mark in names else 0
            if ahead > bound:
                return _too_much(rank, f"when {mark} begins", ahead, bound, why)
            used += bytes_
    return ""


def _arrived(case: Case, data: RankData, mark: str) -> int:
    """Bytes of parameters that calls before a mark bring to a rank."""
    calls = [call for call in _calls(data, mark) if call.op in PARAMETERS and call.op != "send"]
    return sum(call.bytes_ if call.op == "recv" else moved(call, case.world_size) for call in calls)


def end_part(case: Case, got: list[RankData], *, vectors: int, why: str, beside: int = 0) -> Part:
    """Judge what is left at the mark "ends"."""
    bound = allowed(case, vectors) + beside
    for rank, data in enumerate(got):
        held = _held(data.traced)["ends"]
        if held > bound and case.world_size > 1:
            return Part("memory", False, _too_much(rank, "at the end", held, bound, why))
    return Part("memory", True, f"at most {bound:,} bytes are left at the end")


def whole_part(case: Case, got: list[RankData], want: list[int], why: str) -> Part:
    """Judge which units have `full` set at the end."""
    names = [str(index) for index in want]
    for rank, data in enumerate(got):
        found = data.values[WHOLE]
        if found != names and case.world_size > 1:
            seen = f"units {', '.join(found)} have" if found else "no unit has"
            only = f"only the last unit (unit {names[0]})" if names else "no unit"
            text = f"at the end {only} must have `full` set; on rank {rank} {seen}. {why}"
            return Part("memory", False, text)
    return Part("memory", True, "`full` is None where it has to be")


def allowed(case: Case, num_vectors: int) -> int:
    """Bytes of so many vectors of the largest unit, all activations, and a quarter of the smallest unit."""
    every = sizes(case)
    activations = item(case) * SAMPLES * int(case.params["width"]) * (len(every) + 1)
    return num_vectors * max(every) + activations + min(every) // 4


def shard_gradients(case: Case, first: int = 0) -> int:
    """Bytes of the gradients of this rank's shards of unit `first` and the later ones."""
    found = [unit_bytes(case, i) for i in range(first, len(case.params["kinds"])) if shape_of(case, i)[1]]
    return sum(found) // case.world_size


def _held(trace: RankTrace) -> dict[str, int]:
    """Bytes that live at the last mark of each name, beyond those at "begins"."""
    live, at_mark = 0, {}
    for event in trace.events:
        if isinstance(event, Alloc):
            live += event.bytes_
        elif isinstance(event, Free):
            live -= event.bytes_
        elif isinstance(event, Mark):
            at_mark[event.name] = live
    return {name: bytes_ - at_mark["begins"] for name, bytes_ in at_mark.items()}


def _too_much(rank: int, when: str, held: int, bound: int, why: str) -> str:
    return f"{when}, at most {bound:,} bytes may live beyond the shards; rank {rank} holds {held:,}. {why}"


def _computed_once(case: Case, got: list[RankData], phase: str) -> str:
    for rank, data in enumerate(got):
        names = [m.name for m in data.traced.of(Mark)]
        for i in range(len(case.params["kinds"])):
            count = names.count(f"{phase} {i}")
            needless = phase == "backward" and not any(shape_of(case, j)[1] for j in range(i + 1))
            if count != 1 and not (needless and count == 0):
                return f"each unit must run its {phase} once; rank {rank} ran unit {i}'s {count} times."
    return ""
