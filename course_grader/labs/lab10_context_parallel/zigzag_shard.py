"""`zigzag_shard`: which tokens each rank keeps, so that a causal ring is never waiting for one of them."""

from typing import Any

import numpy as np

from course_grader.expected.samples import samples
from course_grader.parts.numbers import EveryPoint, Point
from course_grader.types import Exercise, Why

Row = tuple[int, int]  # tokens of a piece, cp_size


def _draw(rng: np.random.Generator, count: int) -> list[Row]:
    return [(int(rng.integers(1, 9)), int(rng.integers(2, 13))) for _ in range(count)]


def _point(row: Row) -> list[dict[str, int]]:
    piece, cp_size = row
    return [{"seq_len": 2 * cp_size * piece, "cp_size": cp_size}]


EXERCISE = Exercise(
    order=4,
    title="Zigzag",
    minutes=15,
    difficulty=2,
    importance=4,
    lines=6,
    points={"values": 0.5, "balance": 1.5},
    task="Write a function that returns, for each of `cp_size` ranks, the list of positions of the tokens "
    "it keeps, in ascending order. Cut the sequence so that a causal ring gives all ranks the same "
    "work, at every step.",
    graded={
        "values": "Every position is kept once, and every rank keeps as many.",
        "balance": "No rank computes more scores than another by more than one piece of S/(2 cp) tokens "
        "squared, in all and at every step of the ring.",
    },
    details="2 to 12 ranks and 1, pieces of 1 to 8 tokens; 2 cp_size divides seq_len. A score counts where "
    "its query is at its key's position or later. At step t rank r meets the keys of rank (r - t) % cp.",
    signature="(seq_len, cp_size)",
    forbids=("context parallelism",),
    scenario=samples(stream=104, draw=_draw, expand=_point),
    hints=(
        "The first token sees one key, the last sees all. Which other token do you give to the rank that "
        "has the first?",
        "Cut the sequence into 2 cp pieces. A rank gets two of them, an early one and a late one, so that "
        "the places of the two add up to the same for every rank.",
        "Take cp = 2, four pieces 0 to 3, and write down how much of the matrix each of them computes. Into "
        "which two pairs must they go? Do the same for six pieces, then say it for any rank.",
    ),
)

OPEN: list[Any] = [(2, 4), (1, 2), (4, 1), 4]
HIDDEN: list[Any] = [(8, 3), 8]


def visible(query: list[int], key: list[int]) -> int:
    """Scores of which the query is not before the key."""
    return int((np.array(query)[:, None] >= np.array(key)[None, :]).sum())


def _values(point: Point, answer: Any) -> Why | None:
    n, seq_len = point["cp_size"], point["seq_len"]
    if not isinstance(answer, list) or len(answer) != n or not all(isinstance(kept, list) for kept in answer):
        return Why(f"the function must return {n} lists of positions", f"got {answer!r:.60}")
    flat = [position for kept in answer for position in kept]
    if any(type(position) is not int for position in flat):
        return Why("positions must be whole numbers", f"got {answer!r:.60}")
    if sorted(flat) != list(range(seq_len)):
        return Why(f"each position from 0 to {seq_len - 1} must be kept once", f"got {sorted(flat)!r:.80}")
    if any(len(kept) != seq_len // n or kept != sorted(kept) for kept in answer):
        return Why(f"every rank must keep {seq_len // n} positions in ascending order", f"got {answer!r:.80}")
    return None


def _spread(works: list[int], point: Point) -> str:
    bound = (point["seq_len"] // (2 * point["cp_size"])) ** 2
    if max(works) - min(works) <= bound:
        return ""
    return f"{min(works):,} to {max(works):,} scores, which may differ by {bound:,}"


def _balance(point: Point, answer: Any) -> Why | None:
    n, everything = point["cp_size"], list(range(point["seq_len"]))
    seen = _spread([visible(kept, everything) for kept in answer], point)
    if seen:
        return Why("ranks must compute equally much", f"they compute {seen}")
    for step in range(n):
        seen = _spread([visible(answer[r], answer[(r - step) % n]) for r in range(n)], point)
        if seen:
            return Why(f"at step {step} ranks must compute equally much", f"they compute {seen}")
    return None


def _contiguous(point: Point) -> list[list[int]]:
    return np.arange(point["seq_len"]).reshape(point["cp_size"], -1).tolist()


def _pairs(point: Point) -> list[list[int]]:
    pieces = np.arange(point["seq_len"]).reshape(2, point["cp_size"], -1)
    return [[*first, *second] for first, second in zip(*pieces.tolist(), strict=True)]


RULES = {
    "each rank keeps one contiguous part": _contiguous,
    "rank r keeps pieces r and cp + r: the second must be counted from the end": _pairs,
}
PARTS = [
    EveryPoint(part="values", problem=_values, gate=True),
    EveryPoint(part="balance", problem=_balance, rules=RULES),
]
