"""`all_reduce_time`: what a ring and a tree cost, in messages and in bytes, and when NCCL should change over.

Judged by formulas of its own: the library's cost model is not asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from course_lib.grading.exercise import Array, Case, Exercise, Part, RankData

EXERCISE = Exercise(
    id="all_reduce_time",
    lab="02_collectives",
    order=7,
    symbol="all_reduce_time",
    title="How long does it take?",
    minutes=15,
    difficulty=2,
    importance=5,
    lines=9,
    points={"ring": 1.0, "tree": 1.0, "crossover": 1.0},
    graded="Seconds at points you have not seen (1-4,096 ranks, 0 bytes to 100 GB), within 0.1%. Ring: the "
    "formula. Tree: a binomial reduce, then a binomial broadcast, whole messages. Crossover: 'auto' is the "
    "faster of the two, at points close to both sides of the size at which they change places. Each is a "
    "part of its own.",
    closed=("course_lib.cost",),
    signature="(size_bytes, n, latency_s, bandwidth, algorithm)",
    hints=(
        "A message of b bytes takes latency_s + b / bandwidth. Count the steps that must come one after the "
        "other, and the bytes of the message in each.",
        "The ring: 2(n-1) steps, each with a chunk of size/n. The tree: ceil(log2 n) rounds for the reduce "
        "and as many for the broadcast, each with the whole size.",
        "(n - 1).bit_length() is ceil(log2 n), exactly and for n = 1 too. 'auto' calls the function twice.",
    ),
)

Point = tuple[float, int, float, float, str]
SAME = 1e-3


def ring_s(size: float, n: int, latency: float, bandwidth: float) -> float:
    """2(n-1) steps with a chunk each."""
    return 2 * (n - 1) * (latency + size / n / bandwidth)


def tree_s(size: float, n: int, latency: float, bandwidth: float) -> float:
    """2 ceil(log2 n) rounds with everything in each."""
    return 2 * _log2_up(n) * (latency + size / bandwidth)


def auto_s(size: float, n: int, latency: float, bandwidth: float) -> float:
    """The faster one."""
    return min(ring_s(size, n, latency, bandwidth), tree_s(size, n, latency, bandwidth))


def crossover_bytes(n: int, latency: float, bandwidth: float) -> float:
    """Size at which ring and tree take the same time; 0 if the ring is never slower (n < 4)."""
    rounds = _log2_up(n)
    gain = rounds - (n - 1) / n
    return max(0.0, latency * bandwidth * (n - 1 - rounds) / gain) if gain > 0 else 0.0


def _log2_up(n: int) -> int:
    return (n - 1).bit_length()


def _points(seed: int, count: int) -> list[Point]:
    draw = np.random.default_rng([seed, 2])
    # Small n first; latency and bandwidth matter about equally, so that no term hides behind the other.
    sizes = [1, 4, 2, 3, 5, 8, 6, 16, 12, 64, 100, 1024, 7, 4096]
    found: list[Point] = []
    for i in range(count):
        n = sizes[i % len(sizes)]
        latency, bandwidth = float(10 ** draw.uniform(-6, -4)), float(10 ** draw.uniform(9, 11.7))
        change = crossover_bytes(n, latency, bandwidth)
        size = float(round(max(n * latency * bandwidth, 1.0) * 10 ** draw.uniform(-1, 1)))
        found += [(size, n, latency, bandwidth, name) for name in ("ring", "tree", "auto")]
        for factor in (0.7, 0.95, 1.05, 1.4) if change else ():
            found.append((float(round(change * factor)), n, latency, bandwidth, "auto"))
    links = [(0.0, 4, 1e-5, 25e9), (1e6, 8, 1e-5, 25e9), (1e6, 8, 4e-5, 25e9), (1e6, 8, 1e-5, 80e9)]
    found += [(*link, name) for link in links for name in ("ring", "tree", "auto")]
    return found


def cases(seed: int, hidden: bool) -> list[Case]:
    """One process, many points."""
    points = _points(seed, 28 if hidden else 10)
    label = f"{len(points)} points"
    return [
        Case(world_size=1, seed=seed, params={"points": [list(p) for p in points]}, label=label, trace=False)
    ]


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """Nothing: the points are parameters."""
    del case, rank
    return {}


def oracle(case: Case) -> dict[str, Any]:
    """Each part is judged in `verdict`."""
    del case
    return {}


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """Each algorithm at all its points."""
    del want
    answers = got[0].values["answers"]
    pairs = [(tuple(p), a) for p, a in zip(case.params["points"], answers, strict=True)]
    names = {"ring": ring_s, "tree": tree_s, "auto": auto_s}
    parts = [_part(name, right, [(p, a) for p, a in pairs if p[4] == name]) for name, right in names.items()]
    auto = parts[-1]
    if auto.ok or all(part.ok for part in parts[:-1]):
        return parts
    # 'auto' is as wrong as the two it is made of: what it looks like says nothing about the choice.
    text = auto.message.split(" This is what you get")[0].split(" Wrong at ")[0]
    return [
        *parts[:-1],
        Part("crossover", False, f"{text} It takes the faster of the two: repair them first."),
    ]


def _part(algorithm: str, right: Callable[..., float], pairs: list[tuple[Any, Any]]) -> Part:
    part = "crossover" if algorithm == "auto" else algorithm
    wrong = []
    for p, got in pairs:
        if isinstance(got, bool) or not isinstance(got, int | float) or not math.isfinite(got):
            return Part(
                part, False, f"the time of {algorithm!r} must be a number of seconds; got {got!r:.60}."
            )
        if not _near(right(*p[:4]), got):
            wrong.append((p, got))
    if not wrong:
        return Part(part, True, f"{algorithm!r} right at {len(pairs)} points")
    p, got = wrong[0]
    ratio = f" ({got / right(*p[:4]):.3g}x)" if right(*p[:4]) else ""
    finger = next(
        (f" This is what you get if {w}." for w, f in _MISTAKES[algorithm].items() if _explains(f, pairs)), ""
    )
    text = (
        f"{algorithm!r} must take {_time(right(*p[:4]))} for {_words(p)}; got {_time(got)}{ratio}.{finger} "
        f"Wrong at {len(wrong)} of {len(pairs)} points."
    )
    return Part(part, False, text)


def _explains(mistake: Callable[..., float], pairs: list[tuple[Any, Any]]) -> bool:
    return all(_near(mistake(*p[:4]), got) for p, got in pairs if p[1] > 1 and p[0] > 0)


def _near(want: float, got: float) -> bool:
    return abs(got - want) <= SAME * abs(want)


def _time(seconds: float) -> str:
    return f"{seconds:.4g} s" if abs(seconds) >= 1 else f"{seconds * 1e3:.4g} ms"


def _words(p: Point) -> str:
    size, n, latency, bandwidth, _ = p
    return f"size_bytes={size:,.0f}, n={n}, latency_s={latency:.3g}, bandwidth={bandwidth:.3g}"


_MISTAKES: dict[str, dict[str, Callable[..., float]]] = {
    "ring": {
        "only one half is counted: an all_gather follows the reduce_scatter": lambda s, n, a, b: (
            (n - 1) * (a + s / n / b)
        ),
        "whole messages go round: each step carries a chunk of size/n": lambda s, n, a, b: (
            2 * (n - 1) * (a + s / b)
        ),
        "there are n steps a half instead of n-1": lambda s, n, a, b: 2 * n * (a + s / n / b),
        "latency is paid once instead of in every step": lambda s, n, a, b: a + 2 * (n - 1) / n * s / b,
        "latency is paid once a half instead of in every step": lambda s, n, a, b: (
            2 * a + 2 * (n - 1) / n * s / b
        ),
        "latency is left out": lambda s, n, _a, b: 2 * (n - 1) / n * s / b,
        "bytes are taken for bits": lambda s, n, a, b: 2 * (n - 1) * (a + 8 * s / n / b),
    },
    "tree": {
        "only the reduce is counted: a broadcast follows": lambda s, n, a, b: _log2_up(n) * (a + s / b),
        "log2 n is not rounded up": lambda s, n, a, b: 2 * math.log2(n) * (a + s / b),
        "log2 n is rounded down": lambda s, n, a, b: 2 * (n.bit_length() - 1) * (a + s / b),
        "messages are chunks of size/n: a tree carries the whole size": lambda s, n, a, b: (
            2 * _log2_up(n) * (a + s / n / b)
        ),
        "the root serves the others one by one": lambda s, n, a, b: 2 * (n - 1) * (a + s / b),
        "latency is left out": lambda s, n, _a, b: 2 * _log2_up(n) * s / b,
    },
    "auto": {
        "it is always the ring": ring_s,
        "it is always the tree": tree_s,
        "the slower one is taken": lambda *p: max(ring_s(*p), tree_s(*p)),
    },
}
