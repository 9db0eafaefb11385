"""`missing_number`: a data sheet from which one number is missing.

Longer than 120 lines: five numbers may be missing, and each slip is played on all of them.
"""

from collections.abc import Callable
from math import floor, prod
from typing import Any

import numpy as np

from course_grader.expected.samples import samples
from course_grader.parts.numbers import Formula, Numbers, Point
from course_grader.types import Exercise

COUNTS = ("num_sms", "tensor_cores_per_sm", "fma_per_clock_per_tensor_core")
FACTORS = (*COUNTS, "clock_hz")
PEAK = "peak_flops_per_s"


def _sheet(
    name: str, missing: str, die: int, counts: tuple[int, int, int], clocks: tuple[float, float], **peak: Any
) -> dict[str, Any]:
    """A sheet as printed, with None in place of one number."""
    clock_hz, fp32_clock_hz = clocks
    numbers = dict(zip(COUNTS, counts, strict=True)) | {"clock_hz": clock_hz, **peak}
    return {"name": name, "sms_on_die": die, "fp32_clock_hz": fp32_clock_hz, **numbers, missing: None}


def _draw(rng: np.random.Generator, count: int) -> list[dict[str, Any]]:
    return [_drawn(rng, f"unseen GPU {i + 1}", (*FACTORS, PEAK)[i % 5], bool(i % 2)) for i in range(count)]


def _drawn(rng: np.random.Generator, name: str, missing: str, sparse: bool) -> dict[str, Any]:
    sms = int(rng.integers(20, 160))
    counts = (sms, int(rng.choice([2, 3, 4, 6, 8])), int(rng.choice([48, 64, 96, 128, 256, 384])))
    clock_hz = float(f"{rng.uniform(0.9e9, 2.6e9):.3g}")
    fp32_clock_hz = float(f"{clock_hz * rng.uniform(1.05, 1.3):.3g}")
    peak = float(f"{2 * prod(counts) * clock_hz * (1 + sparse):.4g}")
    die = sms + int(rng.integers(3, 20))
    clocks = (clock_hz, fp32_clock_hz)
    return _sheet(name, missing, die, counts, clocks, peak_flops_per_s=peak, with_sparsity=sparse)


EXERCISE = Exercise(
    order=1,
    title="A data sheet with a hole",
    minutes=20,
    difficulty=2,
    importance=4,
    lines=10,
    points={"counts": 1.0, "clock": 0.5, "peak": 0.5},
    task="Write a function that returns the one number of a data sheet that is missing (None).",
    graded={
        "counts": "SMs, tensor cores of an SM, or multiply-adds of a tensor core: a whole number.",
        "clock": "The clock of the tensor cores in Hz.",
        "peak": "The peak as this sheet prints it.",
    },
    details="Sheets of the H100, A100 and V100, and 10 you have not seen (hidden: 40). Peaks are printed "
    "with 3 or 4 digits. Counts exactly, clock and peak within 0.5%.",
    signature="(sheet)",
    forbids=("cost model",),
    scenario=samples(stream=11, draw=_draw, expand=lambda sheet: [{"sheet": sheet}]),
    hints=(
        "First write the equation in which all numbers of the sheet occur. Then ask which of them is "
        "unknown.",
        "A multiply-add is two FLOPs. Two numbers of the sheet do not belong into the equation, and a "
        "footnote may double one side of it.",
        "Multiply what is known, skip what is None. A printed peak is rounded, so what you divide out of it "
        "is near a whole number, and not always above it.",
    ),
)

H100 = (144, (132, 4, 512), (1.83e9, 1.98e9))
OPEN = [
    _sheet("H100", "num_sms", *H100, peak_flops_per_s=989e12, with_sparsity=False),
    _sheet("H100", "clock_hz", *H100, peak_flops_per_s=1979e12, with_sparsity=True),
    _sheet("H100", PEAK, *H100, peak_flops_per_s=0.0, with_sparsity=True),
    _sheet(
        "A100", COUNTS[2], 128, (108, 4, 256), (1.41e9, 1.41e9), peak_flops_per_s=312e12, with_sparsity=False
    ),
    _sheet(
        "V100", COUNTS[1], 84, (80, 8, 64), (1.53e9, 1.53e9), peak_flops_per_s=125e12, with_sparsity=False
    ),
    10,
]
HIDDEN = [30]


def _missing(p: Point) -> str:
    return next(name for name in (*FACTORS, PEAK) if p["sheet"][name] is None)


def solve(
    p: Point,
    flops_per_fma: int = 2,
    reads_footnote: bool = True,
    whole: Callable[[float], float] = round,
    taken: dict[str, str] | None = None,
) -> float:
    """The missing number; with other arguments, what a slip makes of it.

    taken: which number of the sheet stands in for another.
    """
    sheet, missing = p["sheet"], _missing(p)
    given = {name: sheet[(taken or {}).get(name, name)] for name in FACTORS}
    if missing in given and given[missing] is not None:
        return float(given[missing])
    known = flops_per_fma * prod(number for number in given.values() if number is not None)
    known *= 2 if reads_footnote and sheet["with_sparsity"] else 1
    if missing == PEAK:
        return float(known)
    value = sheet[PEAK] / known
    return float(value if missing == "clock_hz" else whole(value))


def _same(value: float) -> float:
    return value


SLIPS: dict[str, dict[str, Any]] = {
    "the footnote is not read: a peak with sparsity is twice the dense one": {"reads_footnote": False},
    "a fused multiply-add is counted as one FLOP: it multiplies and adds": {"flops_per_fma": 1},
    "all SMs on the die are counted: the faulty ones are switched off": {"taken": {"num_sms": "sms_on_die"}},
    "the clock of the FP32 cores is taken": {"taken": {"clock_hz": "fp32_clock_hz"}},
}
OF_COUNTS: dict[str, dict[str, Any]] = {
    "a count is not rounded: SMs come whole, and the printed peak is rounded": {"whole": _same},
    "a count is rounded down: a peak rounded down in print may leave it just below": {"whole": floor},
}


def _formula(slips: dict[str, dict[str, Any]], unit: str, rel: float) -> Formula:
    return Formula(
        want=solve,
        mistakes=lambda p: {words: solve(p, **slip) for words, slip in slips.items()},
        unit=unit,
        rel=rel,
    )


def _words(p: Point) -> str:
    return ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in p["sheet"].items())


def _part(name: str, missing: tuple[str, ...], formula: Formula) -> Numbers:
    return Numbers(part=name, formula=formula, only=lambda p: _missing(p) in missing, describe=_words)


PARTS = [
    _part("counts", COUNTS, _formula({**SLIPS, **OF_COUNTS}, "", 1e-9)),
    _part("clock", ("clock_hz",), _formula(SLIPS, "Hz", 5e-3)),
    _part("peak", (PEAK,), _formula(SLIPS, "FLOP/s", 5e-3)),
]
