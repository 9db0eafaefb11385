"""`matmul_mixed`: a tiled matmul whose accumulator has the dtype it is told.

Ones tell the accumulators apart exactly: in bfloat16 256 + 1 is 256, so 4,096 ones added one by one stay at
256. So do whole numbers, whose products and sums float32 holds exactly: nothing but the accumulator rounds.
Random matrices bound the error against float64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from course_lib.grading.exercise import Array, Case, Exercise, Part, RankData, rng
from course_lib.grading.points import Point, no_oracle

EXERCISE = Exercise(
    id="matmul_mixed",
    lab="01_gpu_hardware",
    order=2,
    symbol="matmul_mixed",
    title="Mixed precision: where is the sum kept?",
    minutes=20,
    difficulty=3,
    importance=5,
    lines=7,
    points={"ones": 1.0, "random": 1.0},
    graded="ones: sums of ones, and of whole numbers, are exactly what each accumulator gives, at several "
    "tiles (4,096 ones, tile 1: 256 in bf16, 2,048 in fp16, 4,096 in fp32). random: relative error against "
    "float64 (Frobenius norm) at most 1e-5 in fp32, in 16 bits at most eps times the root of the number of "
    "tiles, eps = 2^-8 (bf16), 2^-11 (fp16); tiles that do not divide K, factors that are larger than fp16 "
    "can hold.",
    signature="(a, b, accumulate_dtype, tile)",
    hints=(
        "Start with a matrix of zeros in accumulate_dtype, and walk along K in steps of `tile`.",
        "The products of a tile, and their sum, must be float32: convert the two slices before you "
        "multiply them, not the product afterwards.",
        "`acc + partial` of two dtypes is promoted to the wider one, and your accumulator has silently "
        "become fp32. `+=` keeps the dtype of `acc`.",
    ),
)

_BITS = {"bfloat16": 8, "float16": 11, "float32": 24}
"""Bits of a significand: integers up to 2**bits are exact."""
_EXACT = "4,096 ones: 256 in bfloat16, 2,048 in float16, 4,096 in float32"
_FP32_ERROR = 1e-5
Row = tuple[Point, Array, Array, Array]  # a product, its result, its factors
_LARGE = 2.0**20  # entries of a are that much larger, of b smaller: beyond float16, well inside bfloat16


def _points(hidden: bool) -> list[dict[str, Any]]:
    ones = [(4096, 1), (4096, 4), (1024, 16), (1200, 3)] + ([(2048, 2), (4096, 8)] if hidden else [])
    random = [(203, 9, 7, 16, 1.0), (640, 9, 8, 8, _LARGE)]
    random += [(1000, 8, 8, 64, _LARGE), (67, 8, 6, 100, 1.0)] if hidden else []
    whole = [(600, 16), (4, 3)] + ([(203, 7), (500, 3)] if hidden else [])
    return [
        *(
            {"kind": "whole", "k": k, "m": 5, "n": 6, "tile": t, "accumulate_dtype": d}
            for k, t in whole
            for d in _BITS
        ),
        *(
            {"kind": "ones", "k": k, "m": 2, "n": 3, "tile": t, "accumulate_dtype": d}
            for k, t in ones
            for d in _BITS
        ),
        *(
            {"kind": "random", "k": k, "m": m, "n": n, "tile": t, "accumulate_dtype": d, "scale": s}
            for k, m, n, t, s in random
            for d in _BITS
        ),
    ]


def cases(seed: int, hidden: bool) -> list[Case]:
    """One process, all matrices."""
    points = _points(hidden)
    return [
        Case(world_size=1, seed=seed, params={"points": points}, label=f"{len(points)} products", trace=False)
    ]


def _bfloat16(values: Array) -> Array:
    """Cut float32 to what bfloat16 holds exactly."""
    bits = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32)


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """Two float32 matrices a point, all entries exact in bfloat16."""
    del rank
    out = {}
    for i, p in enumerate(case.params["points"]):
        for j, (name, shape) in enumerate((("a", (p["m"], p["k"])), ("b", (p["k"], p["n"])))):
            scale = p.get("scale", 1.0) ** (1, -1)[j]
            draw = rng(case, i, j)
            if p["kind"] == "ones":
                values = np.ones(shape)
            elif p["kind"] == "whole":
                values = draw.integers(0, 16, shape)
            else:
                values = draw.standard_normal(shape) * scale
            out[f"{name}{i}"] = _bfloat16(values)
    return out


oracle = no_oracle


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """Gates of shape and dtype, then exact ones and bounded random products."""
    del want
    points = case.params["points"]
    for i, point in enumerate(points):
        gate = _form(point, got[0], f"c{i}")
        if gate:
            return [gate]
    data = {name: array.astype(np.float64) for name, array in inputs(case, 0).items()}
    rows: dict[str, list[Row]] = {"ones": [], "whole": [], "random": []}
    for i, p in enumerate(points):
        c = got[0].tensors[f"c{i}"].astype(np.float64)
        rows[p["kind"]].append((p, c, data[f"a{i}"], data[f"b{i}"]))
    ones, random = _ones([row[:2] for row in rows["ones"]]), _random(rows["random"])
    # The other mistakes show here, too: one of them costs one part.
    return [_whole(rows["whole"]) if ones.ok and random.ok else ones, random]


def _form(p: Point, got: RankData, name: str) -> Part | None:
    if name not in got.tensors:
        text = f"the result must be a tensor; got {got.values.get(name)!r:.60}."
        return Part("shape", False, text, gate=True)
    shape, dtype = got.tensors[name].shape, got.dtypes[name]
    if shape != (p["m"], p["n"]):
        text = f"the result must have shape {(p['m'], p['n'])}; got {shape}, with {_words(p)}."
        return Part("shape", False, text, gate=True)
    if dtype != p["accumulate_dtype"]:
        text = f"the result must have dtype {p['accumulate_dtype']}; got {dtype}, with {_words(p)}."
        return Part("dtype", False, text, gate=True)
    return None


def _sum_of_ones(p: Point, dtype: str, tile: int) -> float:
    """Add `tile` again and again, rounded to nearest (half to even) each time."""
    return _added_up(p["k"], tile, _BITS[dtype])


@cache
def _added_up(k: int, tile: int, bits: int) -> float:
    total = 0
    for start in range(0, k, tile):
        total += min(tile, k - start)
        last_place = 2 ** max(0, total.bit_length() - bits)
        total = last_place * round(total / last_place)
    return float(total)


def _ones(pairs: list[tuple[Point, Array]]) -> Part:
    wrong = [(p, c) for p, c in pairs if not np.all(c == _sum_of_ones(p, p["accumulate_dtype"], p["tile"]))]
    if not wrong:
        return Part("ones", True, _EXACT)
    mistakes: dict[str, Callable[[Point], float]] = {
        "the sum is kept in float32 whatever accumulate_dtype says (bf16 + fp32 is fp32: `acc + partial` "
        "changes the accumulator)": lambda p: float(p["k"]),
        "the sum is kept in bfloat16 whatever accumulate_dtype says": lambda p: _sum_of_ones(
            p, "bfloat16", p["tile"]
        ),
        "`tile` is ignored: you add one product at a time": lambda p: _sum_of_ones(
            p, p["accumulate_dtype"], 1
        ),
        "the last tile is left out": lambda p: min(
            _sum_of_ones(p, p["accumulate_dtype"], p["tile"]), p["k"] - p["tile"]
        ),
        "one tile is computed: the sum starts anew each time": lambda p: float(p["tile"]),
    }
    finger = next((w for w, f in mistakes.items() if all(np.all(c == f(p)) for p, c in pairs)), "")
    p, c = wrong[0]
    text = (
        f"{p['k']:,} ones must add up to {_sum_of_ones(p, p['accumulate_dtype'], p['tile']):,.0f}; "
        f"got {c.flat[0]:,.0f}, with {_words(p)}."
    )
    return Part("ones", False, text + (f" This is what you get if {finger}." if finger else ""))


def _rounded(values: Array, dtype: str) -> Array:
    """Round whole numbers to what `dtype` holds: to nearest, half to even."""
    last_place = 2.0 ** np.maximum(0, np.frexp(values)[1] - _BITS[dtype])
    return np.asarray(last_place * np.round(values / last_place))


def _sums(p: Point, a: Array, b: Array, round_tiles: bool) -> Array:
    """Add up the tiles of a product of whole numbers, rounded after each; `round_tiles`: these, too."""
    dtype, total = p["accumulate_dtype"], np.zeros((a.shape[0], b.shape[1]))
    for k in range(0, p["k"], p["tile"]):
        tile = a[:, k : k + p["tile"]] @ b[k : k + p["tile"]]
        total = _rounded(total + (_rounded(tile, dtype) if round_tiles else tile), dtype)
    return total


def _whole(rows: list[Row]) -> Part:
    for p, c, a, b in rows:
        wanted = _sums(p, a, b, round_tiles=False)
        wrong = np.argwhere(c != wanted)
        # Who rounds the sum of a tile before it is added has rounded the accumulator as asked.
        if len(wrong) and not np.array_equal(c, _sums(p, a, b, round_tiles=True)):
            place = tuple(int(i) for i in wrong[0])
            text = (
                f"whole numbers must add up to {wanted[place]:,.0f} with an accumulator that is rounded "
                f"after each tile, in the order of K; got {c[place]:,.0f}, with {_words(p)}."
            )
            return Part("ones", False, text)
    return Part("ones", True, _EXACT)


def _random(rows: list[Row]) -> Part:
    for p, c, a, b in sorted(rows, key=lambda row: row[0]["accumulate_dtype"] != "float32"):
        exact = a @ b
        with np.errstate(all="ignore"):  # infinities are wrong, not our warning
            error = float(np.linalg.norm(c - exact) / np.linalg.norm(exact))
        bound = _bound(p)
        if not error <= bound:
            finger = _finger(p, c, a, b, error)
            text = f"the relative error must be at most {bound:.2g}; got {error:.2g}, with {_words(p)}."
            return Part("random", False, text + (f" {finger}" if finger else ""))
    return Part("random", True, "relative errors within their bounds")


def _bound(p: Point) -> float:
    if p["accumulate_dtype"] == "float32":
        return _FP32_ERROR
    steps = max(2, -(-p["k"] // p["tile"]))
    # Twice what rounding to nearest gives; a product rounded to bf16 before it is added to fp16 gives more.
    return float(2.0 ** -_BITS[p["accumulate_dtype"]] * np.sqrt(steps))


def _finger(p: Point, c: Array, a: Array, b: Array, error: float) -> str:
    if not np.isfinite(c).all():
        return (
            f"It holds infinity or NaN: factors of this product reach {np.abs(a).max():.1g}, the largest "
            "float16 is 65,504. Convert factors to float32, never to accumulate_dtype."
        )
    whole = p["k"] - p["k"] % p["tile"]
    if np.allclose(c, a[:, :whole] @ b[:whole], rtol=0.1, atol=0.2) and error > 0.02:
        return f"The last {p['k'] - whole} of K = {p['k']} are left out: tile {p['tile']} does not divide K."
    if p["accumulate_dtype"] == "float32" and error < 0.1:
        return (
            "That is 16-bit rounding: is the product of a tile float32 *before* it is added? bf16 @ bf16 is "
            "rounded to bf16."
        )
    return ""


def _words(p: Point) -> str:
    return f"K={p['k']}, tile={p['tile']}, accumulate_dtype=torch.{p['accumulate_dtype']}"
