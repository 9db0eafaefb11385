"""`overlap_break_even`: when does the gradient all_reduce stop hiding behind the backward pass?

The formulas are judged by a replay of their own: buckets that become ready one after another during backward,
and one communication stream that serves them in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from course_lib.grading.exercise import Array, Case, Exercise, Part, RankData

EXERCISE = Exercise(
    id="overlap_break_even",
    lab="03_data_parallel",
    order=5,
    symbol="overlap_break_even",
    title="Are four GPUs four times as fast?",
    minutes=25,
    difficulty=3,
    importance=5,
    lines=12,
    points={"batch": 1.0, "bytes_per_s": 1.0, "speedup": 1.0},
    graded="At points you have not seen (1-1024 ranks): batch exactly, bytes_per_s and speedup within 0.1%, "
    "against a replay "
    "of the buckets on one communication stream. Each number is a part of its own.",
    signature="(*, num_params, flops_per_sample, flops_per_s, link_bytes_per_s, world_size, batch, "
    "num_buckets, bytes_per_param)",
    hints=(
        "Draw one step on paper: forward, then backward in num_buckets equal pieces; below it the "
        "all_reduces, each "
        "starting when its piece is done and the previous all_reduce has ended. Where does the picture end?",
        "Three times matter: forward F and backward B (one third and two thirds of the step's FLOPs), and "
        "the all_reduce "
        "of all gradients C. Communication is hidden as long as C <= B; only B depends on the batch.",
        "The last bucket is never hidden: backward is over when it starts. So a step ends at F + B + C/k "
        "when communication "
        "keeps up, and at F + B/k + C when it is the bottleneck; the larger of the two is always right. "
        "In that time n ranks do n times the work that one rank does in F + B.",
    ),
)

Point = dict[str, Any]
_WHOLE_STEP = "communication may hide behind the whole step: gradients exist only in backward"


def _points(seed: int, count: int, sizes: tuple[int, ...]) -> list[Point]:
    """Clusters whose break-even lies between about 2 and 3,000 samples, and batches on both sides of it."""
    draw = np.random.default_rng([seed, 5])
    points = []
    for i in range(count):
        num_params = int(10 ** draw.uniform(7, 11))
        flops_per_s = float(10 ** draw.uniform(13, 15))
        link = float(10 ** draw.uniform(9, 11.5))
        world_size = int(sizes[i % len(sizes)])
        size = int(draw.choice([2, 4]))
        # Choose the FLOPs so that the break-even is near a batch we like; never so near to a whole number
        # that rounding decides.
        most = (1000, 3000) if i % 10 == 7 else (2, 60)
        target = int(draw.integers(*most)) + float(draw.uniform(0.05, 0.95) if i % 10 != 3 else 0.003)
        traffic_s = 2 * (world_size - 1) / world_size * num_params * size / link
        flops = 1.5 * max(traffic_s, 1e-3) * flops_per_s / target
        points.append(
            {
                "num_params": num_params,
                "flops_per_sample": flops,
                "flops_per_s": flops_per_s,
                "link_bytes_per_s": link,
                "world_size": world_size,
                "batch": max(1, round(target * float(draw.choice([0.3, 0.8, 1.0, 1.3, 4.0])))),
                "num_buckets": int(draw.integers(2, 40)),
                "bytes_per_param": size,
            }
        )
    return points


def cases(seed: int, hidden: bool) -> list[Case]:
    """One process, many points."""
    count, sizes = (40, (1, 2, 3, 4, 5, 8, 16, 64, 1024)) if hidden else (10, (1, 2, 3, 4, 8))
    points = _points(seed, count, sizes)
    return [Case(world_size=1, seed=seed, params={"points": points}, label=f"{count} points", trace=False)]


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """Nothing: the points are parameters."""
    del case, rank
    return {}


def times(p: Point) -> tuple[float, float, float]:
    """Seconds of forward, backward and of the all_reduce of all gradients."""
    compute_s = p["flops_per_sample"] * p["batch"] / p["flops_per_s"]
    ring = 2 * (p["world_size"] - 1) / p["world_size"]
    traffic_s = ring * p["num_params"] * p["bytes_per_param"] / p["link_bytes_per_s"]
    return compute_s / 3, compute_s * 2 / 3, traffic_s


def replay(p: Point) -> tuple[float, float]:
    """Play one step event by event. Returns its end, and how late the last bucket starts after backward, s.

    Communication keeps up if the last bucket starts as soon as it is ready.
    """
    forward_s, backward_s, traffic_s = times(p)
    k = p["num_buckets"]
    now_s, stream_free_s, last_start_s = forward_s, 0.0, 0.0
    for _ in range(k):
        now_s += backward_s / k  # this piece of backward ends: its bucket is ready
        last_start_s = max(now_s, stream_free_s)
        stream_free_s = last_start_s + traffic_s / k
    return max(now_s, stream_free_s), last_start_s - now_s


def oracle(case: Case) -> dict[str, Any]:
    """What the replay says at each point is computed in `verdict`: it depends on the answer."""
    del case
    return {}


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """Judge each of the three numbers at every point; the first wrong point speaks."""
    del want
    points, answers = case.params["points"], got[0].values["answers"]
    names = list(EXERCISE.points)
    for answer in answers:
        if not isinstance(answer, dict):
            text = f"the function must return a dict with {', '.join(map(repr, names))}; got {answer!r:.60}."
            return [Part("values", False, text, gate=True)]
    pairs = list(zip(points, answers, strict=True))
    return [_part(name, [(p, a.get(name)) for p, a in pairs]) for name in names]


def _part(name: str, pairs: list[tuple[Point, Any]]) -> Part:
    """One number at all points: the first wrong one speaks, and the mistake that explains all answers."""
    judge, mistakes = _JUDGES[name]
    wrong = []
    for p, got in pairs:
        if isinstance(got, bool) or not isinstance(got, int | float) or not math.isfinite(got):
            return Part(name, False, f"{name!r} must be a number; got {got!r:.60}.")
        text = judge(p, got)
        if text:
            wrong.append((p, got, text))
    if not wrong:
        return Part(name, True, f"equal to the replay at {len(pairs)} points")
    tables = [(mistakes(p), got) for p, got in pairs if p["world_size"] > 1]
    words = next((w for w in tables[0][0] if all(_near(table[w], got) for table, got in tables)), "")
    finger = f" This is what you get if {words}." if words else ""
    p, _, text = wrong[0]
    return Part(
        name, False, f"{text}{finger} Wrong at {len(wrong)} of {len(pairs)} points, such as\n    {_words(p)}"
    )


def _near(value: float, got: float) -> bool:
    return abs(got - value) <= 1e-3 * abs(value)


def _behind_s(p: Point) -> float:
    return replay(p)[1]


def _hidden(p: Point) -> bool:
    """Communication keeps up with backward; ties within 1e-9 of the step."""
    end_s, behind_s = replay(p)
    return behind_s <= 1e-9 * end_s


def _judge_batch(p: Point, got: float) -> str:
    if got != round(got) or got < 1:
        return f"batch must be a whole number, at least 1; got {got:g}."
    here, fewer = {**p, "batch": got}, {**p, "batch": got - 1}
    if not _hidden(here):
        late_s = _behind_s(here)
        return (
            f"at batch {got:g} communication does not keep up: replayed, the last bucket "
            f"starts {_time(late_s)} after backward has ended. A larger batch is needed."
        )
    if got > 1 and _hidden(fewer):
        return f"batch {got:g} is hidden, but so is {got - 1:g}: the smallest is asked."
    return ""


def _judge_bandwidth(p: Point, got: float) -> str:
    forward_s, backward_s, _ = times(p)
    ring = 2 * (p["world_size"] - 1) / p["world_size"]
    want = ring * p["num_params"] * p["bytes_per_param"] / backward_s
    if abs(got - want) <= 1e-3 * want:
        return ""
    if p["world_size"] == 1:
        return f"one rank communicates nothing: bytes_per_s must be 0; got {got:.4g}."
    if got <= 0:
        return f"bytes_per_s must be positive; got {got:.4g}."
    late_s = _behind_s({**p, "link_bytes_per_s": got})
    if late_s > 1e-9 * (forward_s + backward_s):
        return (
            f"on a link of {got:.4g} bytes/s communication does not keep up: replayed, the last bucket "
            f"starts {_time(late_s)} after backward has ended."
        )
    return f"{got:.4g} bytes/s hide communication; so does a slower link, and the smallest is asked."


def _judge_speedup(p: Point, got: float) -> str:
    forward_s, backward_s, _ = times(p)
    end_s = replay(p)[0]
    want = p["world_size"] * (forward_s + backward_s) / end_s
    if abs(got - want) <= 1e-3 * want:
        return ""
    one_s = forward_s + backward_s
    return (
        f"speedup {got:.4g} does not fit the replay: a step of one rank takes {_time(one_s)}, "
        f"one of {p['world_size']} ranks {_time(end_s)}."
    )


def _up(batch: float) -> int:
    return max(1, math.ceil(batch - 1e-9))


def _batches(p: Point) -> dict[str, float]:
    one_s = p["flops_per_sample"] / p["flops_per_s"]
    exact = 1.5 * times(p)[2] / one_s
    n = p["world_size"]
    return {
        "you round down: below the break-even it is not hidden": math.floor(exact),
        "you do not round: a batch is a whole number": exact,
        _WHOLE_STEP: _up(exact * 2 / 3),
        "backward is taken for half of the step: it has twice the FLOPs of forward": _up(exact * 4 / 3),
        "forward and backward are swapped": _up(exact * 2),
        **{words: _up(exact * factor) for words, factor in _traffic_mistakes(p).items()},
        "the batch of all ranks together is given: the batch per rank is asked": _up(exact) * n,
    }


def _bandwidths(p: Point) -> dict[str, float]:
    _, backward_s, traffic_s = times(p)
    exact = traffic_s * p["link_bytes_per_s"] / backward_s
    return {
        _WHOLE_STEP: exact * 2 / 3,
        "backward is taken for half of the step: it has twice the FLOPs of forward": exact * 4 / 3,
        "forward and backward are swapped": exact * 2,
        "you give bits per second: bytes are asked": exact * 8,
        **{words: exact * factor for words, factor in _traffic_mistakes(p).items()},
        "the FLOPs of one sample are used instead of those of the batch": exact * p["batch"],
    }


def _traffic_mistakes(p: Point) -> dict[str, float]:
    ring = 2 * (p["world_size"] - 1) / p["world_size"]
    return {
        "the factor 2(n-1)/n of a ring is missing": 1 / ring,
        "the factor is 2 instead of 2(n-1)/n": 2 / ring,
        "half of the all_reduce is missing: reduce_scatter and all_gather take (n-1)/n each": 0.5,
        "the bytes of a parameter are missing": 1 / p["bytes_per_param"],
        "bytes_per_param is not used: you always take 4": 4 / p["bytes_per_param"],
        "the factor is n instead of 2(n-1)/n": p["world_size"] / ring,
    }


def _speedups(p: Point) -> dict[str, float]:
    forward_s, backward_s, c = times(p)
    n, k = p["world_size"], p["num_buckets"]
    one_s = forward_s + backward_s
    right = n * one_s / replay(p)[0]
    return {
        "you give the efficiency: the speed-up is n times that": right / n,
        "nothing overlaps": n * one_s / (one_s + c),
        "the last bucket is forgotten: it starts as backward ends": n
        * one_s
        / (forward_s + max(backward_s, c)),
        "communication is always hidden but for its last bucket": n * one_s / (one_s + c / k),
        "communication is free": n,
        "communication may start with forward": n * one_s / max(one_s, c),
        "the first bucket is ready before backward starts": n
        * one_s
        / (forward_s + max(backward_s + c / k, c)),
        "you divide the wrong way round": 1 / right,
    }


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _words(p: Point) -> str:
    return ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in p.items())


_JUDGES: dict[str, tuple[Callable[[Point, float], str], Callable[[Point], dict[str, float]]]] = {
    "batch": (_judge_batch, _batches),
    "bytes_per_s": (_judge_bandwidth, _bandwidths),
    "speedup": (_judge_speedup, _speedups),
}
