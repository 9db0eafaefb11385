"""`cluster_totals`: what a whole cluster holds, computes and draws, at Meta's and at made-up clusters.

Longer than 120 lines: five numbers, each with the slips that units and levels of a cluster invite.
"""

from typing import Any

import numpy as np

from course_lib.grading.core.types import Exercise
from course_lib.grading.parts.numbers import Formula, Numbers, Point
from course_lib.grading.worlds.samples import samples

META = {
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

COUNTS = ("gpus_per_server", "servers_per_rack", "racks_per_pod", "pods")


def _unseen(rng: np.random.Generator, count: int) -> list[dict[str, Any]]:
    clusters = [_drawn(rng, i) for i in range(count)]
    if count > 1:
        clusters[1] |= {name: clusters[0][name] for name in COUNTS}  # as many GPUs, of another kind
    return clusters


def _drawn(draw: np.random.Generator, i: int) -> dict[str, Any]:
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


EXERCISE = Exercise(
    order=7,
    title="A cluster in five numbers",
    minutes=15,
    difficulty=2,
    importance=3,
    lines=10,
    points=dict.fromkeys(("gpus", "memory_bytes", "flops_per_s", "power_w", "cross_pod_bytes_per_s"), 0.5),
    task="Write a function that returns five totals of a cluster from its description.",
    graded={
        "gpus": "The number of GPUs.",
        "memory_bytes": "Their memory together.",
        "flops_per_s": "Their dense peak together.",
        "power_w": "What all servers draw.",
        "cross_pod_bytes_per_s": "What is left for one GPU if all send to another pod at once.",
    },
    details="Meta's 24,576 GPUs and 5 clusters you have not seen (hidden: 20). gpus exactly, the others "
    "within 0.1%, in "
    "SI units.",
    signature="(cluster)",
    forbids=("cost model",),
    scenario=samples(stream=15, draw=_unseen, expand=lambda cluster: [{"cluster": cluster}]),
    hints=(
        "Count GPUs from the inside out: server, rack, pod, cluster. Keep the number of servers as well.",
        "Power comes per server, because CPUs, fans and network cards draw it too. Memory and FLOP/s come "
        "per GPU.",
        "A network card sends bits. If everybody sends to another pod at once, the oversubscribed top "
        "layer leaves each GPU one part in `oversubscription` of its card.",
    ),
)

OPEN = [META, 5]
HIDDEN = [15]


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


FORMULAS = {
    "gpus": Formula(want=_gpus, mistakes=lambda p: _share(p, _gpus(p)), rel=1e-9),
    "memory_bytes": Formula(
        want=lambda p: _gpus(p) * p["cluster"]["gpu_memory_bytes"], mistakes=_memories, unit="bytes"
    ),
    "flops_per_s": Formula(
        want=lambda p: _gpus(p) * p["cluster"]["gpu_flops_per_s"], mistakes=_flops, unit="FLOP/s"
    ),
    "power_w": Formula(
        want=lambda p: _servers(p["cluster"]) * p["cluster"]["server_power_w"], mistakes=_powers, unit="W"
    ),
    "cross_pod_bytes_per_s": Formula(
        want=lambda p: p["cluster"]["network_bits_per_s"] / 8 / p["cluster"]["oversubscription"],
        mistakes=_exits,
        unit="bytes/s",
    ),
}


def _words(p: Point) -> str:
    return ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in p["cluster"].items())


PARTS = [Numbers(part=name, formula=formula, key=name, describe=_words) for name, formula in FORMULAS.items()]
