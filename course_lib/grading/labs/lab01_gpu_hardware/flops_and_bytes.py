"""`flops_and_bytes`: what five operations compute and what they move, by the counting rules of the text.

Longer than 120 lines: five operations, two counts each, and the slips of every one.
"""

from math import prod
from typing import Any

import numpy as np

from course_lib.grading.core.types import Exercise
from course_lib.grading.parts.numbers import Formula, Numbers, Point
from course_lib.grading.worlds.samples import samples

OPS = ("matmul", "layer_norm", "softmax", "attention", "flash_attention")


def _draw(rng: np.random.Generator, count: int) -> list[dict[str, Any]]:
    """So many rounds of large and of small shapes, and one row times a matrix."""
    points = [_drawn(rng, op, largest) for op in OPS for largest in [9000, 40] * count]
    row = {name: int(rng.integers(5, 20)) for name in "kn"}
    return [*points, {"op": "matmul", "sizes": {"m": 1, **row}, "element_bytes": 2}]


def _drawn(rng: np.random.Generator, op: str, largest: int) -> dict[str, Any]:
    return {"op": op, "sizes": _sizes(rng, op, largest), "element_bytes": int(rng.choice([1, 2, 4, 8]))}


def _sizes(draw: np.random.Generator, op: str, largest: int) -> dict[str, int]:
    if op == "matmul":
        return {name: int(draw.integers(1, largest)) for name in "mkn"}
    if op in ("layer_norm", "softmax"):
        return {"rows": int(draw.integers(1, 400)), "dim": int(draw.integers(2, largest))}
    names = {"batch": 9, "heads": 70, "sequence": 9000, "head_dim": 257}
    return {name: int(draw.integers(2, high)) for name, high in names.items()}


EXERCISE = Exercise(
    order=3,
    title="What an operation computes and moves",
    minutes=20,
    difficulty=2,
    importance=5,
    lines=18,
    points=dict.fromkeys(OPS, 0.5),
    task="Write a function that returns the FLOPs and the bytes of an operation, by the counting rules "
    "above.",
    graded={op: f"FLOPs and bytes of {op.replace('_', ' ')}." for op in OPS},
    details="Within 0.1% at 21 shapes you have not seen (hidden: 61), 1 to 8 bytes an element.",
    signature="(op, sizes, element_bytes)",
    forbids=("flop counts",),
    scenario=samples(stream=12, draw=_draw),
    hints=(
        "For each operation list its input tensors and its output tensors. Every one crosses memory once; "
        "that is the bytes. Then count FLOPs per element of the output.",
        "An (m,k) by (k,n) product has m*n outputs of k multiplications and k additions. Layer norm reads "
        "its gain and bias too, one of each a column.",
        "Attention is two batched matmuls with a softmax between. Unfused, the S x S scores are written by "
        "the first, read and written by the softmax, read by the second: four times. Fused, they never "
        "leave the chip.",
    ),
)

OPEN = [2]
HIDDEN = [4]


def _flops(point: Point) -> float:
    op, s = point["op"], point["sizes"]
    if op == "matmul":
        return float(2 * s["m"] * s["k"] * s["n"])
    if op in ("layer_norm", "softmax"):
        return float((7 if op == "layer_norm" else 5) * s["rows"] * s["dim"])
    scores = s["batch"] * s["heads"] * s["sequence"] ** 2
    return float(scores * (4 * s["head_dim"] + 5))


def _bytes(point: Point) -> float:
    op, s, e = point["op"], point["sizes"], point["element_bytes"]
    if op == "matmul":
        return float(e * (s["m"] * s["k"] + s["k"] * s["n"] + s["m"] * s["n"]))
    if op == "softmax":
        return float(e * 2 * s["rows"] * s["dim"])
    if op == "layer_norm":
        return float(e * (2 * s["rows"] * s["dim"] + 2 * s["dim"]))
    fused = 4 * prod(s.values())
    return float(e * (fused if op == "flash_attention" else fused + 4 * _scores(s)))


def _scores(s: Point) -> int:
    return int(s["batch"] * s["heads"] * s["sequence"] ** 2)


def _near_flops(point: Point) -> dict[str, float | str]:
    op, s, right = point["op"], point["sizes"], _flops(point)
    near: dict[str, float | str] = {"flops and bytes are swapped: return (flops, num_bytes)": _bytes(point)}
    if op == "matmul":
        near["you count k multiplications but not the k additions"] = right / 2
    if op.endswith("attention"):
        one_product = float(_scores(s) * (2 * s["head_dim"] + 5))
        near["you count one of the two matmuls, or multiplications but not additions"] = one_product
        near["you leave out the softmax"] = float(_scores(s) * 4 * s["head_dim"])
        near["you forget the heads"] = right / s["heads"]
        near["you forget the batch"] = right / s["batch"]
        near["you halve the scores: no causal mask here"] = right / 2
    if op in ("layer_norm", "softmax"):
        near["you count one FLOP an element"] = float(s["rows"] * s["dim"])
        near["you take the count of the other normalisation"] = right * (
            5 / 7 if op == "layer_norm" else 7 / 5
        )
    return near


def _near_bytes(point: Point) -> dict[str, float | str]:
    op, s, e, right = point["op"], point["sizes"], point["element_bytes"], _bytes(point)
    near: dict[str, float | str] = {
        "you count elements: multiply by element_bytes": right / e,
        "you count bits": right * 8,
        "element_bytes is not used: you always take 4": right * 4 / e,
        "element_bytes is not used: you always take 2": right * 2 / e,
        "flops and bytes are swapped: return (flops, num_bytes)": _flops(point),
    }
    if op == "matmul":
        near["the output is not written"] = right - e * s["m"] * s["n"]
        near["the second matrix is not read"] = right - e * s["k"] * s["n"]
    if op in ("layer_norm", "softmax"):
        near["the input is read but the output not written"] = right - e * s["rows"] * s["dim"]
    if op == "layer_norm":
        near["gain and bias are not read"] = e * 2.0 * s["rows"] * s["dim"]
        near["gain and bias are read for every row: once is enough"] = e * 4.0 * s["rows"] * s["dim"]
    if op.endswith("attention"):
        fused = e * 4.0 * prod(s.values())
        near["the scores cross memory 0 times: they do so without fusion"] = fused
        near["the scores cross memory 4 times: fused they stay on the chip"] = fused + e * 4 * _scores(s)
        for times in (1, 2, 3):
            near[f"the scores cross memory {times} times"] = fused + e * times * _scores(s)
        near["the output is not written"] = right - fused / 4
    return {words: value for words, value in near.items() if value != right}


def _words(point: Point) -> str:
    sizes = ", ".join(f"{k}={v}" for k, v in point["sizes"].items())
    return f"{point['op']}, {sizes}, element_bytes={point['element_bytes']}"


COUNTS = {
    "flops": Formula(want=_flops, mistakes=_near_flops, unit="FLOP"),
    "num_bytes": Formula(want=_bytes, mistakes=_near_bytes, unit="bytes"),
}


def _of(op: str) -> list[Numbers]:
    return [
        Numbers(
            part=op,
            formula=formula,
            only=lambda p: p["op"] == op,
            key=place,
            length=2,
            name=name,
            describe=_words,
        )
        for place, (name, formula) in enumerate(COUNTS.items())
    ]


PARTS = [part for op in OPS for part in _of(op)]
