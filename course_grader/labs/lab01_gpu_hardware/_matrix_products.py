"""Judge's half of `matrix_products`: factors that bfloat16 holds, and what an accumulator keeps.

Ones tell accumulators apart exactly: in bfloat16 256 + 1 is 256, so 4,096 ones added one by one stay at 256.
So do whole numbers, whose products and sums float32 holds exactly: nothing but the accumulator rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from course_grader.parts.points import Point
from course_grader.types import Array, Case, Scenario, rng

BITS = {"bfloat16": 8, "float16": 11, "float32": 24}
"""Bits of a significand: integers up to 2**bits are exact."""


def products(kind: str, m: int, k: int, n: int, tile: int, scale: float = 1.0) -> list[dict[str, Any]]:
    """The product of an [m, k] and a [k, n] matrix, with each accumulator.

    Args:
        kind: "ones", "whole" numbers, or "random".
        scale: entries of the first factor are that much larger, of the second smaller.
    """
    point = {"kind": kind, "m": m, "k": k, "n": n, "tile": tile, "scale": scale}
    return [{**point, "accumulate_dtype": dtype} for dtype in BITS]


def _cases(chosen: Sequence[list[dict[str, Any]]], seed: int) -> list[Case]:
    points = [point for each in chosen for point in each]
    label = f"{len(points)} products"
    return [Case(world_size=1, seed=seed, params={"points": points}, label=label, trace=False)]


def factors(case: Case, rank: int = 0) -> dict[str, Array]:
    """Two float32 matrices per point, all entries exact in bfloat16."""
    del rank
    out = {}
    for i, p in enumerate(case.params["points"]):
        shapes = {"a": (p["m"], p["k"]), "b": (p["k"], p["n"])}
        for j, (name, shape) in enumerate(shapes.items()):
            draw = rng(case, i, j)
            if p["kind"] == "ones":
                values = np.ones(shape)
            elif p["kind"] == "whole":
                values = draw.integers(0, 16, shape)
            else:
                values = draw.standard_normal(shape) * p["scale"] ** (1, -1)[j]
            out[f"{name}{i}"] = _bfloat16(values)
    return out


def _bfloat16(values: Array) -> Array:
    """Cut float32 to what bfloat16 holds exactly."""
    bits = values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32)


def matrix_products() -> Scenario:
    """impl(a, b, accumulate_dtype, tile) at the points of every `products`."""
    return Scenario(
        rank_side="course_grader.inside.programs.lab01:matrix_products", inputs=factors, cases=_cases
    )


def sum_of_ones(p: Point, dtype: str = "", tile: int = 0) -> float:
    """Add k ones, `tile` at a time, rounded to nearest (half to even) each time."""
    return _added_up(p["k"], tile or p["tile"], BITS[dtype or p["accumulate_dtype"]])


@cache
def _added_up(k: int, tile: int, bits: int) -> float:
    total = 0
    for start in range(0, k, tile):
        total += min(tile, k - start)
        last_place = 2 ** max(0, total.bit_length() - bits)
        total = last_place * round(total / last_place)
    return float(total)


def sums(p: Point, a: Array, b: Array, round_tiles: bool) -> Array:
    """Add up the tiles of a product of whole numbers, rounded after each; `round_tiles`: these, too."""
    dtype, total = p["accumulate_dtype"], np.zeros((a.shape[0], b.shape[1]))
    for k in range(0, p["k"], p["tile"]):
        tile = a[:, k : k + p["tile"]] @ b[k : k + p["tile"]]
        total = _rounded(total + (_rounded(tile, dtype) if round_tiles else tile), dtype)
    return total


def _rounded(values: Array, dtype: str) -> Array:
    """Round whole numbers to what `dtype` holds: to nearest, half to even."""
    last_place = 2.0 ** np.maximum(0, np.frexp(values)[1] - BITS[dtype])
    return np.asarray(last_place * np.round(values / last_place))
