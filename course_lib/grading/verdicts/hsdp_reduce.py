"""`hsdp_reduce`: reduce_scatter inside a server, all_reduce of a shard across."""

from __future__ import annotations

from typing import Any

import numpy as np

from course_lib.grading.exercise import Array, Case, Exercise, Part, RankData, Want, rng
from course_lib.grading.fsdp_oracle import CLOSED, item, moved
from course_lib.grading.ring_worlds import cast
from course_lib.grading.toy_oracle import collectives, events_between

EXERCISE = Exercise(
    id="hsdp_reduce",
    lab="05_fsdp_hsdp",
    order=6,
    symbol="hsdp_reduce",
    title="HSDP: shard inside, replicate across",
    minutes=15,
    difficulty=3,
    importance=5,
    lines=8,
    points={"values": 1.0, "inside": 0.5, "across": 1.0},
    graded="Values: every rank returns its shard (by its place along dp_shard, zero-padded at the end) of "
    "the mean over all ranks, on meshes 2 x 2, 1 x 4, 4 x 1 and smaller (hidden: 2 x 3, 3 x 2), for lengths "
    "that dp_shard does not divide. Bytes inside servers (ranks that differ along dp_shard only): at most "
    "one reduce_scatter of the padded gradient. Bytes across: at most one all_reduce of a shard (which may "
    "be padded to a multiple of dp_replicate); an all_reduce counts double.",
    closed=CLOSED,
    signature="(grad, mesh)",
    hints=(
        "Which ranks keep the same shard? They must agree in the end; the others need not know of them.",
        "mesh.group('dp_shard') holds the ranks of this rank's server, mesh.group('dp_replicate') those at "
        "the same place in other servers. Reduce inside first: what is left to send across is smaller.",
        "Pad grad with zeros to a multiple of mesh.size('dp_shard'); reduce_scatter_tensor into a shard over "
        "dp_shard; all_reduce the shard over dp_replicate; divide by the product of both sizes.",
    ),
)

INSIDE, ACROSS = "inside", "across"


def cases(seed: int, hidden: bool) -> list[Case]:
    """Replicas x shards, and lengths; one in float32."""
    found = [(1, 1, 5), (2, 2, 8), (1, 4, 10), (4, 1, 7), (2, 2, 9), (1, 3, 1)]
    found += [(2, 3, 20), (3, 2, 11), (2, 2, 150_001), (1, 2, 3)] if hidden else []
    worlds = [_case(seed, *meshes) for meshes in found]
    return [*worlds, _case(seed, 2, 2, 30, "float32")] if hidden else worlds


def _case(seed: int, replicas: int, shards: int, numel: int, dtype: str = "float64") -> Case:
    return Case(
        world_size=replicas * shards,
        seed=seed,
        params={"dp_replicate": replicas, "dp_shard": shards, "numel": numel, "dtype": dtype},
        label=f"{replicas} x {shards} ranks, {numel:,} elements" + f" of {dtype}" * (dtype != "float64"),
    )


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """This rank's whole gradient."""
    return {"grad": cast(case, rng(case, rank).normal(size=case.params["numel"]))}


def oracle(case: Case) -> dict[str, Any]:
    """Shards of the mean; `near` leaves out an axis."""
    n, k = case.world_size, case.params["dp_shard"]
    m = n // k
    grads = [inputs(case, rank)["grad"] for rank in range(n)]
    total = np.sum(grads, axis=0)
    servers = [np.sum(grads[s * k : (s + 1) * k], axis=0) for s in range(m)]
    columns = [np.sum(grads[place::k], axis=0) for place in range(k)]
    size = -(-case.params["numel"] // k)

    def shards(by_rank: list[Array]) -> list[Array]:
        return [
            np.pad(flat, (0, k * size - len(flat)))[rank % k * size : (rank % k + 1) * size]
            for rank, flat in enumerate(by_rank)
        ]

    near = {
        "the sum over all ranks is not divided: did you average?": [total] * n,
        "only the ranks of one server are averaged: nothing went across": [
            servers[r // k] / k for r in range(n)
        ],
        "only ranks at the same place of their servers are averaged: nothing was summed inside": [
            columns[r % k] / m for r in range(n)
        ],
        "the sum is divided by dp_shard only": [total / k] * n,
        "the sum is divided by dp_replicate only": [total / m] * n,
    }
    alone = shards(grads) if n > 1 else None
    useful = {words: shards(value) for words, value in near.items()} if n > 1 else {}
    return {"shard": Want(shards([total / n] * n), per_rank=True, alone=alone, near=useful)}


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """Bytes of groups that stay inside a server, and of those that do not."""
    del want
    k, m = case.params["dp_shard"], case.params["dp_replicate"]
    shard = item(case) * -(-case.params["numel"] // k)
    spare = 2 * item(case) * (m - 1)  # a shard padded so that m ranks can share the work
    bounds = {INSIDE: k * shard if k > 1 else 0, ACROSS: 2 * shard + spare if m > 1 else 0}
    advice = {
        INSIDE: "One reduce_scatter over dp_shard brings each rank the sum of its part",
        ACROSS: "Reduce inside first: then only a shard crosses, over dp_replicate",
    }
    parts = []
    for where, bound in bounds.items():
        counts = [_moved(data, k, case.world_size, where) for data in got]
        rank = max(range(len(counts)), key=lambda r: counts[r])
        if counts[rank] > bound:
            ratio = f" ({counts[rank] / bound:.3g}x)" if bound else ""
            text = (
                f"rank {rank} may move at most {bound:,} bytes {where} servers; it moved "
                f"{counts[rank]:,}{ratio}. {advice[where]}."
            )
            parts.append(Part(where, False, text))
        else:
            parts.append(Part(where, True, f"{counts[rank]:,} bytes {where} servers"))
    return parts


def _moved(data: RankData, server_size: int, world_size: int, where: str) -> int:
    calls = collectives(events_between(data.traced, "begins", "ends"))
    chosen = [c for c in calls if (len({r // server_size for r in c.group.ranks}) == 1) == (where == INSIDE)]
    return sum(moved(c, len(c.group.ranks)) for c in chosen if world_size > 1 and len(c.group.ranks) > 1)
