"""`hierarchical_all_reduce_`: reduce inside a server first, so that little crosses between servers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from course_lib.grading.exercise import Array, Case, Exercise, Part, RankData
from course_lib.grading.ring_worlds import (
    CLOSED,
    ceil_div,
    communicated,
    elements,
    held,
    in_place,
    sends,
    total,
    world,
)

EXERCISE = Exercise(
    id="hierarchical_all_reduce",
    lab="02_collectives",
    order=6,
    symbol="hierarchical_all_reduce_",
    title="All-reduce over servers",
    minutes=20,
    difficulty=3,
    importance=5,
    lines=4,
    points={"values": 1.0, "bytes": 2.0},
    graded="Values, on m servers of k ranks, m x k up to 2 x 2 and 3 x 1 (hidden: up to 2 x 4 and 4 x 2), "
    "for sizes that do not divide: every rank's tensor becomes the sum, in place; nothing is left in "
    "flight. Bytes: a rank sends at most 2(m-1)/m x S/k elements to other servers, rounded up as 2(m-1) "
    "ceil(ceil(S/k)/m). The check supplies the groups and the three collectives.",
    closed=CLOSED,
    signature="(tensor, inside, across, reduce_scatter, all_gather, all_reduce_)",
    hints=(
        "A server has k ranks, each with its own link to the others. How small can the part be that each of "
        "them carries across, if they share the work?",
        "Sum inside the server first, and leave each rank with one chunk of that sum. Ranks at the same "
        "place in their servers (the group `across`) hold the same chunk.",
        "Three steps: reduce_scatter inside, all_reduce_ of the chunk across, all_gather inside; then copy "
        "the 1-D result into tensor.view(-1).",
    ),
)


def cases(seed: int, hidden: bool) -> list[Case]:
    """m servers of k ranks."""
    found = [(1, 1, [5]), (1, 2, [7]), (2, 1, [6]), (2, 2, [4, 2]), (3, 1, [10]), (2, 2, [9])]
    if hidden:
        found += [(3, 2, [4, 5]), (2, 3, [17]), (4, 2, [37]), (2, 4, [150_001]), (2, 2, [3])]
    return [_servers(seed, *servers) for servers in found] + [_servers(seed, 2, 2, [6], "float32")]


def _servers(seed: int, m: int, k: int, shape: list[int], dtype: str = "float64") -> Case:
    plain = world(m * k, seed, shape, dtype=dtype, server_size=k)
    words = f"{m} server{'s' * (m > 1)} of {k} rank{'s' * (k > 1)}, {plain.label.partition(', ')[2]}"
    return Case(world_size=m * k, seed=seed, params=plain.params, label=words)


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """This rank's tensor."""
    return {"tensor": held(case, rank)}


def oracle(case: Case) -> dict[str, Any]:
    """The sum of all; `near` sums over a part of the ranks."""
    n, k = case.world_size, case.params["server_size"]
    m = n // k
    near = {}
    if m > 1 and k > 1:
        inside = [sum(held(case, s) for s in range(r // k * k, r // k * k + k)) for r in range(n)]
        across = [sum(held(case, s) for s in range(r % k, n, k)) for r in range(n)]
        near = {
            "only the ranks of one server are summed: nothing went across": inside,
            "only ranks at the same place of their servers are summed: nothing was summed inside": across,
        }
    want = in_place(case, [total(case, 0)] * n)
    return {**want, "tensor": replace(want["tensor"], near=near)}


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """Elements each rank sent to other servers."""
    del want
    k, numel = case.params["server_size"], int(np.prod(case.params["shape"]))
    m = case.world_size // k
    bound = 2 * (m - 1) * ceil_div(ceil_div(numel, k), m)
    gate = communicated(case, got, lambda n: 2 * (n - 1) * numel)
    if gate:
        return gate
    crossed = [_crossed(case, rank, data) for rank, data in enumerate(got)]
    rank = max(range(len(crossed)), key=lambda r: crossed[r])
    if crossed[rank] <= bound:
        return [Part("bytes", True, f"at most {bound:,} elements a rank crossed servers")]
    times = f" ({crossed[rank] / bound:.1f}x)" if bound else ""
    text = (
        f"rank {rank} may send at most 2(m-1) ceil(ceil(S/k)/m) = {bound:,} elements to other servers "
        f"(m={m}, k={k}, S={numel:,}); it sent {crossed[rank]:,.0f}{times}.{_name(crossed, numel, m, k)}"
    )
    return [Part("bytes", False, text)]


def _crossed(case: Case, rank: int, data: RankData) -> float:
    k = case.params["server_size"]
    out = [call for call in sends(data.traced) if (call.dst or 0) // k != rank // k]
    return sum(elements(case, out))


def _name(crossed: list[float], numel: int, m: int, k: int) -> str:
    """What looks like it: a leader a server, a ring that ignores servers, or all of S across."""
    busy = sum(elements > 0 for elements in crossed)
    if k > 1 and busy == m:
        return (
            " One rank a server carries everything: is it one ring over all, or a leader? Let all k share it."
        )
    if k > 1 and min(crossed) >= 2 * (m - 1) * (numel // m):
        return " All k ranks carry the whole tensor: reduce_scatter inside comes first."
    return " Only the sum of a server needs to cross, and each of its ranks can carry a k-th of it."
