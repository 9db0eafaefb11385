"""`peak_flops`: the peak of a data sheet from SMs, FLOP a clock and the clock of that unit.

Judged against the vendors' published dense peaks, frozen here, and at made-up GPUs by the closed formula.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from course_lib.grading.exercise import Case, Exercise, Part, RankData
from course_lib.grading.points import Formula, Point, judge, no_inputs, no_oracle, point_case

EXERCISE = Exercise(
    id="peak_flops",
    lab="01_gpu_hardware",
    order=1,
    symbol="peak_flops",
    title="The peak of a data sheet",
    minutes=10,
    difficulty=1,
    importance=4,
    lines=6,
    points={"fp32": 0.5, "tensor": 1.0},
    graded="Dense FLOP/s within 0.5% of the published peaks (H100 989 and 67 TFLOP/s, A100 312, V100 125) "
    "and of GPUs you have not seen, one part a unit.",
    signature="(spec, unit)",
    closed=("course_lib.cost",),
    hints=(
        "Start with one core and one clock tick, then multiply up: cores, SMs, ticks a second.",
        "A fused multiply-add is two FLOPs. An FP32 core does one of them a clock; the spec says how many a "
        "tensor core does.",
        "Only SMs that are switched on count, each unit has its own clock, and sparsity is not yours to "
        "claim.",
    ),
)

_PUBLISHED = {"K40": (5.04, 0.0), "V100": (15.7, 125.0), "A100": (19.5, 312.0), "H100": (67.0, 989.0)}
"""TFLOP/s in FP32 and of the dense 16-bit tensor cores, as printed in NVIDIA's data sheets."""
_SPECS = {
    "K40": (15, 15, 192, 0, 0, 875e6, 875e6),
    "V100": (84, 80, 128 // 2, 8, 64, 1.53e9, 1.53e9),
    "A100": (128, 108, 64, 4, 256, 1.41e9, 1.41e9),
    "H100": (144, 132, 128, 4, 512, 1.98e9, 1.83e9),
}
_KEYS = (
    "sms_on_die",
    "num_sms",
    "fp32_cores_per_sm",
    "tensor_cores_per_sm",
    "fma_per_clock_per_tensor_core",
    "fp32_clock_hz",
    "tensor_clock_hz",
)


def _spec(name: str, numbers: tuple[float, ...], sparse_speedup: int = 2) -> dict[str, Any]:
    return {"name": name, **dict(zip(_KEYS, numbers, strict=True)), "sparse_speedup": sparse_speedup}


def _unseen(seed: int, count: int) -> list[dict[str, Any]]:
    draw = np.random.default_rng([seed, 11])
    specs = []
    for i in range(count):
        num_sms = int(draw.integers(20, 200))
        clock = float(draw.uniform(0.9e9, 2.6e9))
        numbers = (
            num_sms + int(draw.integers(2, 20)),
            num_sms,
            int(draw.choice([64, 96, 128, 160])),
            int(draw.choice([1, 2, 4, 6])),
            int(draw.choice([64, 128, 384, 1024])),
            clock,
            clock * float(draw.uniform(0.8, 0.95) if i % 3 else draw.uniform(1.05, 1.2)),
        )
        specs.append(_spec(f"unseen GPU {i + 1}", numbers, sparse_speedup=int(draw.choice([1, 2, 4]))))
    return specs


def cases(seed: int, hidden: bool) -> list[Case]:
    """The published GPUs, then unseen ones."""
    specs = [_spec(name, _SPECS[name]) for name in ("H100", "A100", "V100", "K40")]
    specs += _unseen(seed, 20 if hidden else 5)
    return point_case(seed, [{"spec": spec, "unit": unit} for spec in specs for unit in ("fp32", "tensor")])


inputs, oracle = no_inputs, no_oracle


def _want(point: Point) -> float:
    spec, unit = point["spec"], point["unit"]
    if spec["name"] in _PUBLISHED:
        return _PUBLISHED[spec["name"]][unit == "tensor"] * 1e12
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


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """One part a unit."""
    del want
    pairs = list(zip(case.params["points"], got[0].values["answers"], strict=True))
    formula = Formula(want=_want, near=_near, unit="FLOP/s", rel=5e-3)
    return [
        judge(unit, formula, [x for x in pairs if x[0]["unit"] == unit], _words) for unit in EXERCISE.parts
    ]
