"""`choose_mesh`: which dp_replicate x dp_shard fits, and communicates least, on clusters never seen."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from course_lib.grading.exercise import Case, Exercise, Part, RankData
from course_lib.grading.mesh_costs import memory_bytes, sizes_that_fit, step_time_s
from course_lib.grading.plain_clusters import make_cluster
from course_lib.grading.points import Point, no_inputs, no_oracle, point_case

EXERCISE = Exercise(
    id="choose_mesh",
    lab="05_fsdp_hsdp",
    order=7,
    symbol="choose_mesh",
    title="Which mesh?",
    minutes=25,
    difficulty=3,
    importance=4,
    lines=15,
    points={"values": 0.5, "memory": 0.5, "clock": 1.5},
    graded="Values: on clusters you have not seen, two whole numbers whose product is the world size. "
    "Memory: the mesh fits into the GPUs by the stated formula, at every point (one always does). "
    "Clock: no other mesh that fits takes less time by the stated cost model (ties accept any).",
    closed=("course_lib.parallel", "course_lib.grading.mesh_costs"),
    signature="(model, cluster, world_size)",
    hints=(
        "How many meshes are there at all for 512 ranks? Few enough to try each.",
        "For dp_shard = k the shard group is range(k), the replicate group range(0, world_size, k): that "
        "tells the cost model which links they use.",
        "For every k that divides world_size: skip it if 16 P / k + 4 P / L + activations exceed "
        "cluster.accelerator.memory_bytes; else sum up L (2 all_gather + reduce_scatter + all_reduce) with "
        "collective_time_s. Return (world_size // k, k) of the least.",
    ),
)

SAME = 1e-6  # relative; below it two times are a tie
_ONE_SERVER = 5  # of every six points; in the first, sharding nothing is the fastest and just does not fit
_SLOW_LINK = 4  # one server whose latency is what counts


def cases(seed: int, hidden: bool) -> list[Case]:
    """Points that no rule of thumb gets right all of the time."""
    draw = np.random.default_rng([seed, 57])
    return point_case(seed, _points(draw, 30 if hidden else 12))


inputs, oracle = no_inputs, no_oracle

# Right nearly everywhere: some point of every case is drawn until they are wrong there.
_RARE = (
    "the search stops at the first rise in time",
    "one all_reduce is taken for all units together",
)
_LATENCY_ONCE = "latency is paid once a collective of the whole model, not once a unit"
_NOTHING_SHARDED = "whole units are left out of the memory where nothing is sharded"
RULES = {
    "dp_shard is the server's size at every point": lambda p, _: min(
        p["cluster"]["spans"][0]["devices"], p["world_size"]
    ),
    "dp_shard is the world size at every point: FSDP": lambda p, _: p["world_size"],
    "dp_shard is the smallest that fits at every point": lambda _, fits: fits[0],
    "dp_shard is the smallest that fits and fills a server at every point": lambda p, fits: min(
        [k for k in fits if k >= p["cluster"]["spans"][0]["devices"]] or fits[-1:]
    ),
    "only powers of two are tried": lambda p, fits: min(
        [k for k in fits if k.bit_count() == 1] or fits[:1], key=partial(_excess, p)
    ),
    "only powers of two and the world size are tried": lambda p, fits: min(
        [k for k in fits if k.bit_count() == 1 or k == p["world_size"]] or fits[:1], key=partial(_excess, p)
    ),
    "the all_reduce is priced on ranks side by side": lambda p, fits: min(
        fits,
        key=partial(step_time_s, p["model"], make_cluster(p["cluster"]), p["world_size"], neighbours=True),
    ),
    _NOTHING_SHARDED: lambda p, _: min(
        [*sizes_that_fit(p["model"], make_cluster(p["cluster"]), p["world_size"]), *_alone(p)],
        key=partial(step_time_s, p["model"], make_cluster(p["cluster"]), p["world_size"]),
    ),
    "activations are left out of the memory": lambda p, _: _fastest(p, activation_bytes=0),
    "the whole units are left out of the memory": lambda p, _: _fastest(p, num_units=math.inf),
    _RARE[0]: lambda p, fits: next(
        (k for k, more in pairwise(fits) if _excess(p, more) > _excess(p, k)), fits[-1]
    ),
    _RARE[1]: lambda p, fits: min(
        fits,
        key=partial(step_time_s, p["model"], make_cluster(p["cluster"]), p["world_size"], together=True),
    ),
    _LATENCY_ONCE: lambda p, fits: min(
        fits,
        key=partial(step_time_s, {**p["model"], "num_units": 1}, make_cluster(p["cluster"]), p["world_size"]),
    ),
}


def _points(draw: np.random.Generator, count: int) -> list[dict[str, Any]]:
    """Draw points until each rule of thumb is wrong at one of the first half at least."""
    while True:
        points = [_point(draw, i) for i in range(count)]
        special = {**dict(enumerate(_RARE, 1)), _SLOW_LINK: _LATENCY_ONCE, _ONE_SERVER: _NOTHING_SHARDED}
        for i, words in special.items():
            while not _loses(points[i], RULES[words]):
                points[i] = _point(draw, i)
        beaten = [any(_loses(p, rule) for p in points[: count // 2]) for rule in RULES.values()]
        if all(beaten):
            return points


def _point(draw: np.random.Generator, i: int) -> dict[str, Any]:
    while True:
        cluster = _cluster(draw, i)
        devices = cluster["spans"][-1]["devices"]
        model = {
            "num_params": round(float(10 ** draw.uniform(8.5, 11.3 if i != _SLOW_LINK else 9.5))),
            "num_units": int(draw.choice([8, 24, 80, 126])),
            "activation_bytes": round(float(draw.uniform(1e9, 3e10))),
        }
        server, world_size = cluster["spans"][0]["devices"], devices // int(draw.choice([1, 1, 2]))
        if world_size > server and world_size % server:
            world_size = devices  # whole servers
        point = {"model": model, "cluster": cluster, "world_size": world_size}
        if i % 3 == 0 or i == _ONE_SERVER:
            model["activation_bytes"] = _just_too_many(point)
        if model["activation_bytes"] > 0 and sizes_that_fit(model, make_cluster(cluster), world_size):
            return point


def _alone(point: Point) -> list[int]:
    """1 if that would fit without whole units."""
    model = {**point["model"], "num_units": math.inf}
    return [1] if memory_bytes(model, 1) <= make_cluster(point["cluster"]).accelerator.memory_bytes else []


def _just_too_many(point: Point) -> int:
    """Activations with which the fastest mesh misses by half of its whole units; negative if none do."""
    model, room = point["model"], make_cluster(point["cluster"]).accelerator.memory_bytes
    units = memory_bytes(model, 1) - memory_bytes({**model, "num_units": math.inf}, 1)
    need = memory_bytes({**model, "activation_bytes": 0}, _fastest(point, num_params=1))
    return round(room - need + units / 2)


def _fastest(point: Point, **instead: float) -> int:
    """The fastest mesh of those that would fit if the model were as `instead` says."""
    cluster, n, model = make_cluster(point["cluster"]), point["world_size"], point["model"]
    return min(
        sizes_that_fit({**model, **instead}, cluster, n), key=lambda k: step_time_s(model, cluster, n, k)
    )


def _cluster(draw: np.random.Generator, i: int) -> dict[str, Any]:
    """Two or three nested spans; sometimes one server only."""
    counts = [int(draw.choice([4, 6, 8, 12]))]  # not powers of two alone
    more = 0 if i % 6 == _ONE_SERVER or i == _SLOW_LINK else 1 + i % 2
    counts += [int(draw.choice([2, 3, 4])), int(draw.choice([2, 4]))][:more]
    devices = np.cumprod(counts).tolist()
    bytes_per_s, latency_s = float(draw.uniform(1e11, 5e11)), float(10 ** draw.uniform(-6, -4.5))
    latency_s *= 100 if i == _SLOW_LINK else 1
    spans = []
    for name, size in zip(("server", "rack", "pod"), devices, strict=False):
        spans.append({"name": name, "devices": size, "latency_s": latency_s, "bytes_per_s": bytes_per_s})
        bytes_per_s, latency_s = (
            bytes_per_s / float(draw.uniform(2, 20)),
            latency_s * float(draw.uniform(1, 5)),
        )
    assert all(b["devices"] % a["devices"] == 0 for a, b in pairwise(spans))
    return {"name": f"unseen cluster {i + 1}", "spans": spans}


def _loses(point: Point, rule: Any) -> bool:
    cluster, n = make_cluster(point["cluster"]), point["world_size"]
    fits = sizes_that_fit(point["model"], cluster, n)
    k = rule(point, fits)
    return k not in fits or _excess(point, k) > 1 + 1e-3


def _excess(point: Point, dp_shard: int) -> float:
    """Time of a mesh over that of the best one that fits."""
    cluster, n, model = make_cluster(point["cluster"]), point["world_size"], point["model"]
    best = min(step_time_s(model, cluster, n, k) for k in sizes_that_fit(model, cluster, n))
    mine = step_time_s(model, cluster, n, dp_shard)
    return mine / best if best else (1.0 if mine == 0 else float("inf"))


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """Form, then memory and time at every point."""
    del want
    points = case.params["points"]
    chosen: list[int] = []
    for point, answer in zip(points, got[0].values["answers"], strict=True):
        problem = _malformed(answer, point["world_size"])
        if problem:
            return [Part("values", False, f"{problem} Wrong at such as\n    {_words(point)}", gate=True)]
        chosen.append(answer[1])
    pairs = list(zip(points, chosen, strict=True))
    return [_memory(pairs), _clock(pairs)]


def _malformed(answer: Any, world_size: int) -> str:
    right = isinstance(answer, list) and len(answer) == 2 and all(type(x) is int and x > 0 for x in answer)
    if not right:
        return f"the result must be (dp_replicate, dp_shard), two positive ints; got {answer!r:.60}."
    if answer[0] * answer[1] != world_size:
        return f"dp_replicate x dp_shard must be the world size {world_size}; got {answer[0]} x {answer[1]}."
    return ""


def _memory(pairs: list[tuple[Point, int]]) -> Part:
    for point, k in pairs:
        need, room = memory_bytes(point["model"], k), make_cluster(point["cluster"]).accelerator.memory_bytes
        if need > room:
            text = (
                f"a mesh must fit: dp_shard={k} needs {need / 1e9:.4g} GB on each GPU of {room / 1e9:.4g} "
                f"GB (16 P / dp_shard + 4 P / L + activations).{_finger(pairs)} At\n    {_words(point)}"
            )
            return Part("memory", False, text)
    return Part("memory", True, f"fits at {len(pairs)} points")


def _clock(pairs: list[tuple[Point, int]]) -> Part:
    wrong = [(p, k) for p, k in pairs if _excess(p, k) > 1 + SAME]
    if not wrong:
        return Part("clock", True, f"none is faster at {len(pairs)} points")
    point, k = wrong[0]
    text = (
        f"no mesh that fits may take less time; dp_shard={k} takes {_excess(point, k):.4g} times as long as "
        f"dp_shard={_fastest(point)}.{_finger(pairs)} Wrong at {len(wrong)} of {len(pairs)} points, such "
        f"as\n    {_words(point)}"
    )
    return Part("clock", False, text)


def _finger(pairs: list[tuple[Point, int]]) -> str:
    """Name the rule that chooses as the answer does, if there is one."""
    return next(
        (f" This is what you get if {words}." for words, rule in RULES.items() if _follows(pairs, rule)), ""
    )


def _follows(pairs: list[tuple[Point, int]], rule: Any) -> bool:
    return all(
        k == rule(p, sizes_that_fit(p["model"], make_cluster(p["cluster"]), p["world_size"]))
        for p, k in pairs
    )


def _words(point: Point) -> str:
    model = point["model"]
    spans = ", ".join(
        f"{s['name']} of {s['devices']}: {s['bytes_per_s'] / 1e9:.4g} GB/s, {s['latency_s'] * 1e6:.3g} us"
        for s in point["cluster"]["spans"]
    )
    return (
        f"{model['num_params'] / 1e9:.4g} B parameters in {model['num_units']} units, activations "
        f"{model['activation_bytes'] / 1e9:.3g} GB; {point['world_size']} ranks; {spans}"
    )
