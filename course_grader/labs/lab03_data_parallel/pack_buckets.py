"""`pack_buckets`: which gradients travel together, by a stated rule."""

from collections.abc import Callable
from typing import Any

import numpy as np

from course_grader.expected.samples import samples, separating
from course_grader.labs.lab03_data_parallel._packing import Buckets, pack
from course_grader.parts.numbers import EveryPoint, Point
from course_grader.types import Exercise, Why

RULES: dict[str, Callable[[Point], Buckets]] = {
    "parameters are taken in forward order: backward finishes the last ones first": lambda p: pack(
        p, forward=True
    ),
    "a bucket closes only after it has exceeded bucket_bytes": lambda p: pack(p, late=True),
    "a bucket closes when the next parameter would fill it exactly: it may": lambda p: pack(p, early=True),
    "the size is not set back to 0 in a new bucket": lambda p: pack(p, keeps=True),
    "every parameter has a bucket of its own": lambda p: [[i] for i in reversed(range(len(p["sizes"])))],
    "all parameters share a bucket": lambda p: [list(reversed(range(len(p["sizes"]))))] if p["sizes"] else [],
    "the first bucket is empty": lambda p: [[], *pack(p)],
    "a bucket is read in forward order": lambda p: [sorted(bucket) for bucket in pack(p)],
}


def _one(rng: np.random.Generator, place: int) -> dict[str, Any]:
    """Now and then a parameter is larger than a bucket, or fills one exactly."""
    cap = int(rng.integers(20, 5000)) * (8000 if place % 2 else 8)  # up to 40 kB, or to 40 MB
    sizes = [int(rng.integers(1, max(2, cap // 12))) * 8 for _ in range(int(rng.integers(2, 14)))]
    if place % 3 == 0:
        sizes[int(rng.integers(len(sizes)))] = cap + 8 * int(rng.integers(1, 50))
    if place % 3 == 1:
        sizes[-2:] = [cap - sizes[-1], sizes[-1]]
    return {"sizes": sizes, "bucket_bytes": cap}


def _draw(rng: np.random.Generator, count: int) -> list[dict[str, Any]]:
    return separating(_one, list(RULES.values()), lambda p, got: got != pack(p), rng, count)


EXERCISE = Exercise(
    order=3,
    title="Which gradients travel together",
    minutes=15,
    difficulty=2,
    importance=3,
    lines=9,
    points={"packing": 1.0},
    task="Write a function that packs parameters into buckets by the rule above.",
    graded={"packing": "The buckets are those of the rule."},
    details="10 lists of sizes you have not seen (hidden: 40), with parameters that are larger than a bucket "
    "or fill one exactly, and none at all.",
    signature="(sizes, bucket_bytes)",
    forbids=("ddp",),
    scenario=samples(stream=31, draw=_draw),
    hints=(
        "You walk the list once. What must you remember of the bucket that is open?",
        "Walk backwards with a running size. Ask before a place is added, not after, whether it still fits.",
        "Try your function on paper: sizes that fill a bucket exactly, one that is larger than a bucket, "
        "none at all. Is the comparison right, does a bucket stay empty, and where does the running size "
        "begin anew?",
    ),
)

OPEN = [{"sizes": [80, 24, 40, 16], "bucket_bytes": 64}, {"sizes": [], "bucket_bytes": 100}, 10]
HIDDEN = [30]


def _problem(p: Point, answer: Any) -> Why | None:
    if not isinstance(answer, list) or not all(isinstance(bucket, list) for bucket in answer):
        return Why("the function must return a list of lists of places", f"got {answer!r:.80}")
    if answer == pack(p):
        return None
    places = sorted(place for bucket in answer for place in bucket)
    if places != list(range(len(p["sizes"]))):
        return Why(f"each place, 0 to {len(p['sizes']) - 1}, must be in one bucket", f"got {answer!r:.80}")
    return Why(f"the rule gives {pack(p)!r:.120}", f"got {answer!r:.120}")


PARTS = [EveryPoint(part="packing", problem=_problem, rules=RULES)]
