"""`cluster_totals`: what a whole cluster holds, computes and draws, at Meta's and at made-up clusters."""

from __future__ import annotations

from typing import Any

import numpy as np

from course_lib.grading.exercise import Case, Exercise, Part, RankData
from course_lib.grading.points import Formula, Point, judge_dicts, no_inputs, no_oracle, point_case

EXERCISE = Exercise(
    id="cluster_totals",
    lab="01_gpu_hardware",
    order=7,
    symbol="cluster_totals",
    title="A cluster in five numbers",
    minutes=15,
    difficulty=2,
    importance=3,
    lines=10,
    points={
        "gpus": 0.5,
        "memory_bytes": 0.5,
        "flops_per_s": 0.5,
        "power_w": 0.5,
        "cross_pod_bytes_per_s": 0.5,
    },
    graded="Meta's 24,576 GPUs and clusters you have not seen: gpus exactly, the others within 0.1%, "
    "dense, in SI units. Each is a part of its own.",
    signature="(cluster)",
    closed=("course_lib.cost",),
    hints=(
        "Count GPUs from the inside out: server, rack, pod, cluster. Keep the number of servers as well.",
        "Power comes per server, because CPUs, fans and network cards draw it too. Memory and FLOP/s come "
        "per GPU.",
        "A network card sends bits. If everybody sends to another pod at once, the oversubscribed top "
        "layer leaves each GPU one part in `oversubscription` of its card.",
    ),
)

_META = {
    "name": "Meta, 24,576 GPUs",
    "gpus_per_server": 8,
    "servers_per_rack": 2,
    "racks_per_pod": 192,
    "pods": 8,
    "gpu_memory_bytes": 80e9,
    "gpu_flops_per_s": 989e12,
    "gpu_sparse_flops_per_s": 1979e12,
    "gpu_power_w": 700.0,
    "server_power_w": 10_200.0,
    "network_bits_per_s": 400e9,
    "oversubscription": 7,
}


_COUNTS = ("gpus_per_server", "servers_per_rack", "racks_per_pod", "pods")


def _unseen(draw: np.random.Generator, i: int) -> dict[str, Any]:
    gpus, flops = int(draw.choice([2, 4, 6, 8, 16])), float(draw.uniform(1e14, 3e15))
    gpu_power_w = float(draw.uniform(300, 1300))
    return {
        "name": f"unseen cluster {i + 1}",
        "gpus_per_server": gpus,
        "servers_per_rack": int(draw.integers(2, 9)),
        "racks_per_pod": int(draw.integers(3, 300)),
        "pods": int(draw.integers(2, 12)),
        "gpu_memory_bytes": float(draw.integers(160, 3000)) * 1e8,
        "gpu_flops_per_s": flops,
        "gpu_sparse_flops_per_s": flops * float(draw.choice([1.0, 2.0, 4.0])),
        "gpu_power_w": gpu_power_w,
        "server_power_w": gpus * gpu_power_w * float(draw.uniform(1.3, 2.0)),
        "network_bits_per_s": float(draw.choice([100e9, 200e9, 800e9])),
        "oversubscription": float(draw.choice([1.5, 2.5, 3, 7])),
    }


def cases(seed: int, hidden: bool) -> list[Case]:
    """Meta's cluster, then unseen ones."""
    draw = np.random.default_rng([seed, 15])
    unseen = [_unseen(draw, i) for i in range(20 if hidden else 5)]
    unseen[1] |= {name: unseen[0][name] for name in _COUNTS}  # as many GPUs, of another kind
    clusters = [_META, *unseen]
    return point_case(seed, [{"cluster": cluster} for cluster in clusters], f"{len(clusters)} clusters")


inputs, oracle = no_inputs, no_oracle


def _servers(c: Point) -> int:
    return int(c["servers_per_rack"] * c["racks_per_pod"] * c["pods"])


def _gpus(p: Point) -> int:
    return int(p["cluster"]["gpus_per_server"] * _servers(p["cluster"]))


def _share(p: Point, right: float) -> dict[str, float | str]:
    c = p["cluster"]
    return {
        "you count one pod: multiply by `pods`": right / c["pods"],
        "you take a rack for one server": right / c["servers_per_rack"],
        "you count servers: each holds several GPUs": right / c["gpus_per_server"],
    }


def _memories(p: Point) -> dict[str, float | str]:
    right = _gpus(p) * p["cluster"]["gpu_memory_bytes"]
    return {
        "you turn GB into GiB on the way: 80 GB are 80e9 bytes": right * 2**30 / 1e9,
        "you divide by 2**30 for GiB: bytes are asked": right / 2**30,
        "you give GB: bytes are asked": right / 1e9,
        "you give PB: bytes are asked": right / 1e15,
        **_share(p, right),
    }


def _flops(p: Point) -> dict[str, float | str]:
    right = _gpus(p) * p["cluster"]["gpu_flops_per_s"]
    return {
        "the sparse peak is used": _gpus(p) * p["cluster"]["gpu_sparse_flops_per_s"],
        "you give EFLOP/s: FLOP/s are asked": right / 1e18,
        **_share(p, right),
    }


def _powers(p: Point) -> dict[str, float | str]:
    c = p["cluster"]
    right = _servers(c) * c["server_power_w"]
    return {
        "only the GPUs draw power: CPUs, fans and network cards do, too": _gpus(p) * c["gpu_power_w"],
        "a server's power is taken for every GPU": _gpus(p) * c["server_power_w"],
        "GPUs are added to the power of the server, which holds them": _gpus(p) * c["gpu_power_w"] + right,
        "you give MW: W are asked": right / 1e6,
        **_share(p, right),
    }


def _exits(p: Point) -> dict[str, float | str]:
    c = p["cluster"]
    right = c["network_bits_per_s"] / 8 / c["oversubscription"]
    return {
        "bits are taken for bytes": right * 8,
        "oversubscription is left out": right * c["oversubscription"],
        "you multiply by the oversubscription: it takes bandwidth away": right * c["oversubscription"] ** 2,
        "you add all GPUs: the share of one is asked": right * _gpus(p),
        "you halve it: the card's speed is one way already": right / 2,
    }


_FORMULAS = {
    "gpus": Formula(want=_gpus, near=lambda p: _share(p, _gpus(p)), rel=1e-9),
    "memory_bytes": Formula(
        want=lambda p: _gpus(p) * p["cluster"]["gpu_memory_bytes"], near=_memories, unit="bytes"
    ),
    "flops_per_s": Formula(
        want=lambda p: _gpus(p) * p["cluster"]["gpu_flops_per_s"], near=_flops, unit="FLOP/s"
    ),
    "power_w": Formula(
        want=lambda p: _servers(p["cluster"]) * p["cluster"]["server_power_w"], near=_powers, unit="W"
    ),
    "cross_pod_bytes_per_s": Formula(
        want=lambda p: p["cluster"]["network_bits_per_s"] / 8 / p["cluster"]["oversubscription"],
        near=_exits,
        unit="bytes/s",
    ),
}


def _words(p: Point) -> str:
    return ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in p["cluster"].items())


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """Each of the five at every cluster."""
    del want
    return judge_dicts(_FORMULAS, case.params["points"], got[0].values["answers"], _words)
