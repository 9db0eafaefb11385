"""`fp8_linear`: scale, saturate, round, multiply; the scale of x comes from the steps before."""

import numpy as np

from course_grader.expected.on_ranks import case, on_ranks, shared
from course_grader.types import Array, Case, Exercise, Expected

E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
LARGEST = {E4M3: 448.0, E5M2: 57344.0}
BITS = {E4M3: (3, -6), E5M2: (2, -14)}  # of the mantissa; the smallest normal exponent


def _fp8(format: str, size: float, past: list[float], *, zero: str = "") -> Case:
    """x has values of order `size`; `past` is the history; zero: "x", "weight" or "row"."""
    label = f"1 rank, {format}, |x| about {size:g}, history {past}{zero and f', {zero} zero'}"
    return case(1, format=format, size=size, past=past, zero=zero, trace=False, label=label)


def _inputs(case: Case, rank: int) -> dict[str, Array]:
    del rank
    p = case.params
    x, weight = shared(case, "x", 6, 32) * p["size"], shared(case, "weight", 5, 32) / 6
    weight *= -np.sign(weight.flat[np.abs(weight).argmax()])  # the largest magnitude is no largest number
    if p["zero"] == "row":
        x[2] = 0
    if p["zero"] in ("x", "weight"):
        (x if p["zero"] == "x" else weight)[:] = 0
    return {"x": x, "weight": weight, "history": np.array(p["past"])}


EXERCISE = Exercise(
    order=4,
    title="A linear layer in FP8",
    minutes=25,
    difficulty=3,
    importance=4,
    lines=10,
    points={"values": 2.0},
    task="Write a function that returns x @ weight.T, multiplied from 8-bit values, and the new history.",
    graded={"values": "y is what rounding to 8 bits and multiplying exactly gives; the history moved on."},
    details="Both formats; x larger and smaller than its history knows, a history of zeros (scale 1 then), "
    "zero rows, x or weight all zero, histories of 1 to 4 steps. float64 in and out. Scales are largest / "
    "amax: no power of two, no margin.",
    signature="(x, weight, history, format)",
    forbids=("float8",),
    scenario=on_ranks(
        inputs=_inputs, arguments=("x", "weight", "history", "format"), returns=("y", "history")
    ),
    hints=(
        "`torch.finfo(dtype).max` is the largest number of a format, `getattr(torch, format)` its dtype.",
        "Scale, clamp, `.to(dtype)`, and back to float64 to multiply; divide the product by both scales.",
        "x's scale comes from the history alone, the weight's from the weight. What enters the history when "
        "this x was larger than anything in it? And what divides if an amax is 0?",
    ),
)

OPEN = [
    _fp8(E4M3, 1.0, [2.0, 4.0, 1.5]),
    _fp8(E5M2, 1.0, [2.0, 4.0, 1.5]),
    _fp8(E4M3, 50.0, [0.5, 1.0, 0.3]),
    _fp8(E5M2, 50.0, [0.5, 1.0, 0.3]),
    _fp8(E4M3, 1e-4, [3.0, 2e-4], zero="row"),
    _fp8(E5M2, 2.0, [0.0, 0.0]),
    _fp8(E4M3, 1.0, [4.0], zero="x"),
    _fp8(E4M3, 1.0, [3.0, 2.0], zero="weight"),
]
HIDDEN = [_fp8(E4M3, 300.0, [1e3, 900.0, 200.0, 5.0]), _fp8(E5M2, 1e3, [10.0]), _fp8(E4M3, 30.0, [0.0])]


def _rounded(x: Array, format: str, clamp: bool) -> Array:
    """To nearest even, by arithmetic in float64."""
    mantissa, least = BITS[format]
    _, exponent = np.frexp(x)
    step = np.ldexp(1.0, np.maximum(exponent - 1, least) - mantissa)
    value: Array = np.round(x / step) * step
    if clamp or format == E4M3:  # torch's cast saturates to e4m3fn, and overflows to e5m2
        value = value.clip(-LARGEST[format], LARGEST[format])
    value[np.abs(value) > LARGEST[format]] *= np.inf
    return value


def expected(
    case: Case,
    *,
    scale: str = "history",
    clamp: bool = True,
    new: str = "own",
    weight_scaled: bool = True,
    back: bool = True,
) -> Expected:
    """y and the history; the arguments make mistakes.

    scale: of x, by "history", "own" (its amax), "last" (step alone) or "none".
    """
    arrays, format = _inputs(case, 0), case.params["format"]
    x, weight, history = arrays["x"], arrays["weight"], arrays["history"]
    own, largest = float(np.abs(x).max()), LARGEST[format]
    amax = {"history": history.max(), "own": own, "last": history[-1]}
    sx = largest / amax[scale] if scale != "none" and amax[scale] > 0 else 1.0
    top = float(np.abs(weight).max())
    sw = largest / top if weight_scaled and top > 0 else 1.0
    with np.errstate(all="ignore"):
        product = _rounded(x * sx, format, clamp) @ _rounded(weight * sw, format, clamp).T
        y = product / (sx * sw) if back else product
    entry = own if new == "own" else min(own, float(history.max()))
    after = np.concatenate([history[1:], [entry]])
    return {"y": [y], "history": [after]}


MISTAKES = {
    "x is scaled by its own amax: delayed scaling knows only those before it": {"scale": "own"},
    "only the last step of the history counts: take the largest": {"scale": "last"},
    "x is not scaled": {"scale": "none"},
    "the weight is not scaled": {"weight_scaled": False},
    "values beyond the largest become infinite: clamp before the cast": {"clamp": False},
    "the history is told no more than it knew: it must hear of the larger amax": {"new": "capped"},
    "the product is not divided by the scales": {"back": False},
}
PARTS: list[object] = []
