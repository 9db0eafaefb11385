"""Worlds of lab 02, as the judge sees them: who is in which group, who holds what, and what was sent.

Shared by the verdicts on collectives made of sends and receives. Sizes are in elements of the tensor's dtype,
so float32 sent as float64 is twice the elements. A tensor of S elements is cut into n chunks as
`torch.tensor_split` (and `np.array_split`) cuts it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from course_lib.grading.exercise import Array, Case, Part, RankData, Want, rng
from course_lib.grading.measure import left_in_flight
from course_lib.trace import Launch, RankTrace

_COLLECTIVES = "all_reduce broadcast reduce all_gather reduce_scatter all_to_all gather scatter"
CLOSED = (
    "course_lib.comm.collectives",
    "course_lib.comm.p2p",
    *(f"torch:collectives:{name}" for name in _COLLECTIVES.split()),
)


def world(
    world_size: int,
    seed: int,
    shape: Sequence[int],
    groups: Sequence[Sequence[int]] = (),
    dtype: str = "float64",
    **params: Any,
) -> Case:
    """Return a case whose ranks hold tensors of `shape`; `groups` (none: the world) work side by side.

    again=True: the answer is called several times. Only values are judged then, so nothing is traced.
    """
    size = f"{prod(shape):,} elements" if len(shape) == 1 else " x ".join(map(str, shape)) + " elements"
    who = f"{world_size} rank{'s' * (world_size > 1)}"
    among = f", group{'s' * (len(groups) > 1)} {' and '.join(map(str, groups))}" if groups else ""
    at = f", root {params['root']}" if "root" in params else ""
    size += f" of {dtype}" * (dtype != "float64") + ", called again" * ("again" in params)
    return Case(
        world_size=world_size,
        seed=seed,
        params={"shape": list(shape), "groups": [list(g) for g in groups], "dtype": dtype, **params},
        label=f"{who}{among}{at}, {size}",
        trace="again" not in params,
    )


def members(case: Case, rank: int) -> list[int]:
    """Global ranks of the group of `rank`; empty if it is in none."""
    groups = case.params["groups"] or [list(range(case.world_size))]
    return next((list(group) for group in groups if rank in group), [])


def held(case: Case, rank: int) -> Array:
    """The tensor `rank` starts with: rank-distinct, of order one."""
    return cast(case, rng(case, rank).standard_normal(case.params["shape"]))


def cast(case: Case, values: Array) -> Array:
    """Values in the case's dtype; in float32 they are 64ths, so that sums are exact in any order."""
    narrow = case.params["dtype"] == "float32"
    return np.asarray(np.round(values * 64) / 64 if narrow else values, case.params["dtype"])


def total(case: Case, rank: int) -> Array:
    """The sum of the tensors of the group of `rank`; its own if it is in none."""
    ring = members(case, rank) or [rank]
    return np.asarray(np.sum([held(case, r) for r in ring], axis=0))


def chunk_of(full: Array, place: int, n: int) -> Array:
    """Chunk `place` of n, 1-D."""
    return np.array_split(full.reshape(-1), n)[place]


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


# ---- what was sent


def sends(trace: RankTrace) -> list[Launch]:
    """Messages that carry data."""
    return [call for call in trace.launches("send") if call.bytes_]


def elements(case: Case, calls: Sequence[Launch]) -> list[float]:
    """Bytes of each message over those of an element of the case's dtype."""
    return [call.bytes_ / np.dtype(case.params["dtype"]).itemsize for call in calls]


def sent_elements(case: Case, data: RankData) -> float:
    """Elements a rank sent, all messages together."""
    return sum(elements(case, sends(data.traced)))


def in_place(case: Case, results: list[Array]) -> dict[str, Want]:
    """The result that must be in each rank's tensor, and in the memory the tensor had."""
    own = [held(case, rank) for rank in range(case.world_size)]
    moved = "the tensor was given other memory (.data = ..., set_): write into what it has, with copy_"
    near = {moved: own} if case.world_size > 1 else {}
    return {
        "tensor": Want(results, per_rank=True, alone=own),
        "memory": Want(results, per_rank=True, near=near),
    }


def with_again(case: Case, name: str, want: Want) -> dict[str, Want]:
    """Each rank's result; in a case that calls again, also those for 3, 5 and 7 times as much."""
    if "again" not in case.params:
        return {name: want}
    first, second, third, fourth = ([k * value for value in want.value] for k in (1, 3, 5, 7))
    written_over = (
        "a later call writes into what an earlier one returned: return a tensor of its own each time"
    )
    near = {
        written_over: second,
        f"{written_over} (the third)": third,
        f"{written_over} (the fourth)": fourth,
    }
    added = "the sums of an earlier call are still in it: keep nothing between calls"
    return {
        name: replace(want, near={**want.near, **near}),
        f"{name} of a second call": Want(
            second,
            per_rank=True,
            near={
                added: [a + b for a, b in zip(first, second, strict=True)],
                "it is what an earlier call returned: keep nothing between calls": first,
            },
        ),
        f"{name} of a third call": Want(third, per_rank=True),
        f"{name} of a fourth call": Want(fourth, per_rank=True),
    }


def communicated(case: Case, got: Sequence[RankData], least: Callable[[int], int]) -> list[Part]:
    """Gates: a group of n > 1 sent at least `least(n)` elements together, and each rank waited for its calls.

    With fewer elements it cannot know: what came another way (a file, the store, a wire of fewer bits) would
    need shared storage or lose digits. What is in flight still may change when the caller uses its tensor.
    """
    for group in case.params["groups"] or [list(range(case.world_size))]:
        due = least(len(group)) if len(group) > 1 else 0
        sent = sum(sent_elements(case, got[rank]) for rank in group)
        if sent < due:
            text = (
                f"ranks {', '.join(map(str, group))} must send each other at least {due:,} elements; they "
                f"sent {sent:,.0f}. Ranks on other machines share no files and no memory: use send and recv."
            )
            return [Part("values", False, text, gate=True)]
    for rank, data in enumerate(got):
        left = left_in_flight(data.traced.events)
        if left:
            text = (
                f"rank {rank} must have waited for every isend and irecv when it returns; {len(left)} "
                f"{left[0]} is still in flight. Until wait() has returned, nobody may touch the tensor."
            )
            return [Part("values", False, text, gate=True)]
    return []


def messages_at_most(case: Case, got: Sequence[RankData], *, numel: int, too_many: str = "") -> Part:
    """Each member of a group of n sends at most n-1 messages of at most ceil(numel/n) elements each.

    too_many: what it looks like if the messages are small enough, and twice as many.
    """
    most = 0
    for rank, data in enumerate(got):
        n = len(members(case, rank)) or 1
        bound = ceil_div(numel, n)
        most = max(most, bound)
        sizes = elements(case, sends(data.traced))
        if len(sizes) <= n - 1 and all(size <= bound for size in sizes):
            continue
        text = (
            f"rank {rank} may send {n - 1} message{'s' * (n != 2)} of at most ceil({numel:,}/{n}) = "
            f"{bound:,} elements; it sent {len(sizes)} of "
            f"{max(sizes):,.0f}{' and fewer' * (len(set(sizes)) > 1)}, together {sum(sizes):,.0f} "
            f"elements{_ratio(sum(sizes), (n - 1) * bound)}."
        )
        if max(sizes) >= numel > bound:
            text += " Whole tensors instead of chunks?"
        elif case.params["dtype"] == "float32" and len(sizes) < n and max(sizes) <= 2 * bound:
            text += " Float64 on the wire for a float32 tensor?"
        elif max(sizes) <= bound and 2 * sum(sizes) <= 3 * (n - 1) * bound:
            text += " Few elements in too many messages: send each chunk whole."
        elif too_many and max(sizes) <= bound and len(sizes) == 2 * (n - 1):
            text += f" {too_many}"
        return Part("bytes", False, text)
    return Part("bytes", True, f"at most n-1 messages of at most {most:,} elements a rank")


def _ratio(seen: float, bound: float) -> str:
    return f" ({seen / bound:.1f}x the bytes of a ring)" if bound and seen > bound else ""
