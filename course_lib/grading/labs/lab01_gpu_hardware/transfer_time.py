"""`transfer_time`: which link joins two GPUs, its bandwidth one way, and the time of a message.

Judged at every class of pair (same GPU, server, rack, pod, cluster) of made-up clusters, by own arithmetic.
Longer than 120 lines: clusters are drawn with every class of pair and every unit of bandwidth.
"""

from itertools import pairwise
from typing import Any

import numpy as np

from course_lib.grading.core.types import Exercise
from course_lib.grading.parts.numbers import Formula, Numbers, Point
from course_lib.grading.worlds.samples import samples

NAMES = ("gpu", "server", "rack", "pod", "cluster")
UNITS = ("bytes/s", "bytes/s both ways", "bits/s", "bits/s both ways")


def _cluster(draw: np.random.Generator, i: int) -> dict[str, Any]:
    """Nested spans; every second cluster has no racks; in some a wider span is the faster one."""
    names = [n for n in NAMES if n != "rack" or i % 2 == 0]
    size, spans, one_way, latency_s = 1, [], float(draw.uniform(1e12, 3e12)), 5e-7
    for place, name in enumerate(names):
        unit = "bytes/s both ways" if name == "gpu" else UNITS[int(draw.integers(4))]
        spans.append(
            {
                "name": name,
                "gpus": size,
                "bandwidth": one_way * _per_byte(unit),
                "unit": unit,
                "latency_s": latency_s,
            }
        )
        size *= int(draw.choice([2, 3, 4, 6, 8, 18]))
        slower = float(draw.uniform(0.6, 0.9) if place and (i + place) % 4 == 2 else draw.uniform(1.2, 6))
        one_way, latency_s = one_way / slower, latency_s * float(draw.uniform(1.5, 3))
    return {"name": f"unseen cluster {i + 1}", "spans": spans}


def _per_byte(unit: str) -> int:
    """How much larger the printed number is than bytes/s one way."""
    return (8 if "bits" in unit else 1) * (2 if "both" in unit else 1)


def _pairs(draw: np.random.Generator, spans: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """For each span one pair that it is the smallest to hold, and the two neighbours at a border inside
    it."""
    total, pairs = spans[-1]["gpus"], [(5 % spans[-1]["gpus"],) * 2]
    for inner, outer in pairwise(spans):
        block = int(draw.integers(total // outer["gpus"])) * outer["gpus"]
        parts = outer["gpus"] // inner["gpus"]
        first, second = (int(x) for x in draw.choice(parts, size=2, replace=False))
        a, b = (block + part * inner["gpus"] + int(draw.integers(inner["gpus"])) for part in (first, second))
        border = block + inner["gpus"] * int(draw.integers(1, parts))
        pairs += [(a, b), (border, border - 1)]
    return pairs


def _draw(rng: np.random.Generator, count: int) -> list[list[dict[str, Any]]]:
    """Clusters, each with a message between every class of pair."""
    rows = []
    for i in range(count):
        cluster = _cluster(rng, i)
        pairs = _pairs(rng, cluster["spans"])
        sizes = [int(10 ** rng.uniform(2, 10)) for _ in pairs]
        rows.append(
            [
                {"size_bytes": size, "a": a, "b": b, "cluster": cluster}
                for size, (a, b) in zip(sizes, pairs, strict=True)
            ]
        )
    return rows


EXERCISE = Exercise(
    order=6,
    title="Which link, and how long?",
    minutes=20,
    difficulty=2,
    importance=5,
    lines=12,
    points={"span": 1.0, "bytes_per_s": 0.5, "time_s": 0.5},
    task="Write a function that says over which span of a cluster two GPUs are joined, what it carries one "
    "way, and "
    "how long a message takes. Only `transfer_time` is called.",
    graded={
        "span": "The name of the smallest span that holds both.",
        "bytes_per_s": "Its bandwidth, one way.",
        "time_s": "The time of the message.",
    },
    details="Every class of pair on 4 clusters you have not seen (hidden: 12), neighbours across a border "
    "included. "
    "The span exactly, the numbers within 0.1%.",
    signature="(size_bytes, a, b, cluster)",
    forbids=("cost model",),
    scenario=samples(stream=14, draw=_draw, expand=lambda row: row),
    hints=(
        "Write down in which server, rack and pod GPU 7 and GPU 8 are. They are neighbours by number; are "
        "they by wire?",
        "Two GPUs share a block of n if their numbers give the same whole quotient by n. The smallest "
        "block that they share decides.",
        "Read `unit` twice: 'bits' needs a division by 8, 'both ways' one by 2. Then a message takes the "
        "latency once and its bytes at that rate.",
    ),
)

OPEN = [4]
HIDDEN = [8]


def _span(p: Point) -> dict[str, Any]:
    spans: list[dict[str, Any]] = p["cluster"]["spans"]
    return next(s for s in spans if p["a"] // s["gpus"] == p["b"] // s["gpus"])


def _by_distance(p: Point) -> dict[str, Any]:
    spans: list[dict[str, Any]] = p["cluster"]["spans"]
    return next(s for s in spans if abs(p["a"] - p["b"]) < s["gpus"])


def _one_way(span: Point) -> float:
    return float(span["bandwidth"] / _per_byte(span["unit"]))


def _time_s(p: Point, span: Point, bytes_per_s: float) -> float:
    return float(span["latency_s"] + p["size_bytes"] / bytes_per_s)


def _spans(p: Point) -> dict[str, float | str]:
    names = [s["name"] for s in p["cluster"]["spans"]]
    at = names.index(_span(p)["name"])
    by_distance = str(_by_distance(p)["name"])
    return {
        "you compare the distance |a - b|: 7 and 8 are neighbours in different servers": by_distance,
        "you take the widest span that holds both: the smallest is asked": str(names[-1]),
        "you take one span too wide: is one GPU a block, too?": str(names[min(max(at, 1), len(names) - 1)]),
        "the names are shifted by one: a block of `gpus` GPUs is the span itself": str(names[max(at - 1, 0)]),
    }


def _bandwidths(p: Point) -> dict[str, float | str]:
    span = _span(p)
    bits, both = 8 if "bits" in span["unit"] else 1, 2 if "both" in span["unit"] else 1
    right = _one_way(span)
    return {
        "a bandwidth for both ways is taken for one way": right * both,
        "bits are taken for bytes": right * bits,
        "bits are multiplied by 8: divide": right * bits**2,
        "`unit` is not read": float(span["bandwidth"]),
        "every bandwidth is halved, also those given one way": right * both / 2,
        "you compare the distance |a - b| with the size of a span": _one_way(_by_distance(p)),
    }


def _times(p: Point) -> dict[str, float | str]:
    span = _span(p)
    right = _one_way(span)
    return {
        "the latency is left out": p["size_bytes"] / right,
        "the latency is paid there and back": _time_s(p, span, right) + span["latency_s"],
        "a bandwidth for both ways is taken for one way": _time_s(
            p, span, right * (2 if "both" in span["unit"] else 1)
        ),
        "bits are taken for bytes": _time_s(p, span, right * (8 if "bits" in span["unit"] else 1)),
        "`unit` is not read": _time_s(p, span, span["bandwidth"]),
        "you take the larger of latency and transfer: they follow each other": max(
            span["latency_s"], p["size_bytes"] / right
        ),
        "you compare the distance |a - b| with the size of a span": _time_s(
            p, _by_distance(p), _one_way(_by_distance(p))
        ),
        "the result is in microseconds": 1e6 * _time_s(p, span, right),
    }


FORMULAS = {
    "span": Formula(want=lambda p: str(_span(p)["name"]), mistakes=_spans),
    "bytes_per_s": Formula(want=lambda p: _one_way(_span(p)), mistakes=_bandwidths, unit="bytes/s"),
    "time_s": Formula(want=lambda p: _time_s(p, _span(p), _one_way(_span(p))), mistakes=_times, unit="s"),
}


def _words(p: Point) -> str:
    blocks = ", ".join(f"{s['name']} {s['gpus']}" for s in p["cluster"]["spans"])
    span = _span(p)
    return (
        f"{p['size_bytes']:,} bytes from GPU {p['a']} to GPU {p['b']}; blocks: {blocks}; {span['name']}: "
        f"{span['bandwidth']:.5g} {span['unit']}, {span['latency_s']:.3g} s"
    )


PARTS = [Numbers(part=name, formula=formula, key=name, describe=_words) for name, formula in FORMULAS.items()]
