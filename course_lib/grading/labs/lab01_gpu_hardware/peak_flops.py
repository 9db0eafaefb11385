"""`peak_flops`: the peak of a data sheet from SMs, FLOP a clock and the clock of that unit.

Judged against the vendors' published dense peaks, and at made-up GPUs by the closed formula.
Longer than 120 lines: four data sheets, GPUs that are drawn, and nine slips.
"""

from typing import Any

import numpy as np

from course_lib.grading.core.types import Exercise
from course_lib.grading.parts.numbers import Formula, Numbers, Point
from course_lib.grading.worlds.samples import samples

PUBLISHED = {"K40": (5.04, 0.0), "V100": (15.7, 125.0), "A100": (19.5, 312.0), "H100": (67.0, 989.0)}
"""TFLOP/s in FP32 and of the dense 16-bit tensor cores, as printed in NVIDIA's data sheets."""
KEYS = (
    "sms_on_die",
    "num_sms",
    "fp32_cores_per_sm",
    "tensor_cores_per_sm",
    "fma_per_clock_per_tensor_core",
    "fp32_clock_hz",
    "tensor_clock_hz",
)

Spec = dict[str, Any]
UNITS = ("fp32", "tensor")


def _spec(name: str, *numbers: float, sparse_speedup: int = 2) -> Spec:
    return {"name": name, **dict(zip(KEYS, numbers, strict=True)), "sparse_speedup": sparse_speedup}


def _unseen(rng: np.random.Generator, count: int) -> list[Spec]:
    return [_drawn(rng, i) for i in range(count)]


def _drawn(rng: np.random.Generator, i: int) -> Spec:
    num_sms, clock = int(rng.integers(20, 200)), float(rng.uniform(0.9e9, 2.6e9))
    return _spec(
        f"unseen GPU {i + 1}",
        num_sms + int(rng.integers(2, 20)),
        num_sms,
        int(rng.choice([64, 96, 128, 160])),
        int(rng.choice([1, 2, 4, 6])),
        int(rng.choice([64, 128, 384, 1024])),
        clock,
        clock * float(rng.uniform(0.8, 0.95) if i % 3 else rng.uniform(1.05, 1.2)),
        sparse_speedup=int(rng.choice([1, 2, 4])),
    )


EXERCISE = Exercise(
    order=1,
    title="The peak of a data sheet",
    minutes=10,
    difficulty=1,
    importance=4,
    lines=6,
    points={"fp32": 0.5, "tensor": 1.0},
    task="Write a function that returns the dense FLOP/s of a GPU's FP32 cores or tensor cores from its "
    "spec.",
    graded={"fp32": "The peak of the FP32 cores.", "tensor": "That of the tensor cores."},
    details="Within 0.5% of the published peaks (H100 989 and 67 TFLOP/s, A100 312, V100 125, K40 5.04) and "
    "of 5 "
    "GPUs you have not seen (hidden: 20).",
    signature="(spec, unit)",
    forbids=("cost model",),
    scenario=samples(stream=11, draw=_unseen, expand=lambda spec: [{"spec": spec, "unit": u} for u in UNITS]),
    hints=(
        "Start with one core and one clock tick, then multiply up: cores, SMs, ticks a second.",
        "A fused multiply-add is two FLOPs. An FP32 core does one of them a clock; the spec says how many a "
        "tensor core does.",
        "Only SMs that are switched on count, each unit has its own clock, and sparsity is not yours to "
        "claim.",
    ),
)

OPEN = [
    _spec("H100", 144, 132, 128, 4, 512, 1.98e9, 1.83e9),
    _spec("A100", 128, 108, 64, 4, 256, 1.41e9, 1.41e9),
    _spec("V100", 84, 80, 64, 8, 64, 1.53e9, 1.53e9),
    _spec("K40", 15, 15, 192, 0, 0, 875e6, 875e6),
    5,
]
HIDDEN = [15]


def _want(point: Point) -> float:
    spec, unit = point["spec"], point["unit"]
    if spec["name"] in PUBLISHED:
        return PUBLISHED[spec["name"]][unit == "tensor"] * 1e12
    return _flops(spec, unit, spec[f"{unit}_clock_hz"])


def _flops(spec: Point, unit: str, clock_hz: float) -> float:
    fma = (
        spec["fp32_cores_per_sm"]
        if unit == "fp32"
        else spec["tensor_cores_per_sm"] * spec["fma_per_clock_per_tensor_core"]
    )
    return float(2 * fma * spec["num_sms"] * clock_hz)


def _near(point: Point) -> dict[str, float | str]:
    spec, unit, right = point["spec"], point["unit"], _want(point)
    other = "tensor" if unit == "fp32" else "fp32"
    return {
        "you count a fused multiply-add as one FLOP: it multiplies and adds": right / 2,
        "you claim the sparse peak: dense is asked": right * spec["sparse_speedup"],
        "you count all SMs on the die: the faulty ones are switched off": right
        * spec["sms_on_die"]
        / spec["num_sms"],
        f"you use the clock of the other unit ({other})": _flops(spec, unit, spec[f"{other}_clock_hz"]),
        "you compute one SM: multiply by their number": right / spec["num_sms"],
        "you give TFLOP/s: FLOP/s are asked": right / 1e12,
        "you compute one clock: multiply by clocks a second": right / spec[f"{unit}_clock_hz"],
        f"you take the cores of the other unit ({other})": _flops(spec, other, spec[f"{unit}_clock_hz"]),
        f"you ignore `unit` and always give {other}": _want({**point, "unit": other}),
    }


def _words(point: Point) -> str:
    spec = ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in point["spec"].items())
    return f"unit={point['unit']!r}, {spec}"


FORMULA = Formula(want=_want, mistakes=_near, unit="FLOP/s", rel=5e-3)


def _of(unit: str) -> Numbers:
    return Numbers(part=unit, formula=FORMULA, only=lambda p: p["unit"] == unit, describe=_words)


PARTS = [_of(unit) for unit in UNITS]
