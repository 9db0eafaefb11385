"""Constants are found again: planted ones from rows that the model itself made, with noise; oracle first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from course_lib.calibrate.fit import Key, fit, value_of, with_values
from course_lib.calibrate.kernels import FULL
from course_lib.calibrate.least_squares import levenberg_marquardt, robust
from course_lib.calibrate.parts import Place, parts_of
from course_lib.calibrate.table import COLLECTIVES, Row
from course_lib.cost.constants import calibration
from course_lib.cost.hardware import accelerator

H100 = Place(accelerator=accelerator("H100 SXM"), stack="megatron-core", fabric="InfiniBand NDR")
BURSTS = 1.07
PLANTED = {
    ("matmul_ceiling", "H100"): 0.62,
    ("half_rows", "all"): 260.0,
    ("half_group_rows", "all"): 340.0,
    ("attention_efficiency", "megatron-core"): 0.43,
}


def rows_of(planted: Mapping[Key, float], place: Place = H100, noise: float = 0.0) -> list[Row]:
    """Make the rows that a GPU with these constants would give, bursts a little faster."""
    random, fitted = np.random.default_rng(0), with_values(calibration(), planted)
    empty = [
        Row(kind="matmul", precision=p, held=held, groups=1, rows=a, cols=b, inner=c, seconds=1.0)
        for p in ("bf16", "fp8")
        for a, b, c in FULL.matmuls
        for held in ("short", "sustained")
        if held == "short" or 2.0 * a * b * c > 1e12
    ]
    empty += [
        Row(kind="grouped", groups=n, rows=a, cols=b, inner=c, seconds=1.0) for n, (a, b, c) in FULL.experts
    ]
    empty += [
        Row(kind=f"attention_{way}", held=held, groups=h, rows=t, cols=t, inner=d, seconds=1.0)
        for h, t, d in FULL.attention
        for way in ("forward", "backward")
        for held in ("short", "sustained")
    ]
    return [_timed(row, fitted, place, random.normal(0, noise)) for row in empty]


def network_of(planted: Mapping[Key, float], ranks: int) -> list[Row]:
    fitted, sizes = with_values(calibration(), planted), [2**k for k in range(20, 31, 2)]
    empty = [
        Row(kind=k, ranks=ranks, per_server=8, bytes=n, seconds=1.0) for k in COLLECTIVES[:3] for n in sizes
    ]
    return [_timed(row, fitted, H100, 0.0) for row in empty]


def _timed(row: Row, fitted, place: Place, off: float) -> Row:
    (part,), _ = parts_of([replace(row, seconds=_long_enough(row))], place)
    seconds = float(part.predict(fitted)[0]) / (BURSTS if part.level else 1.0)
    return replace(row, seconds=seconds * np.exp(off))


def _long_enough(row: Row) -> float:
    """Return seconds that a part takes as they are: half the H100's peak, and at least 60 us."""
    return max(6e-5, row.flops / 5e14)


def test_planted_constants_are_recovered_without_noise() -> None:
    parts, _ = parts_of(rows_of(PLANTED), H100)
    found = fit(H100, parts)
    for key, value in PLANTED.items():
        assert value_of(found.calibration, key) == pytest.approx(value, rel=0.03), key
    assert found.levels["matmul"] == pytest.approx(BURSTS, rel=0.01)
    assert all(error.after < 0.8 < error.before for error in found.errors)


def test_planted_constants_are_recovered_with_noise_of_three_percent() -> None:
    parts, _ = parts_of(rows_of(PLANTED, noise=0.03), H100)
    found, true = fit(H100, parts), with_values(calibration(), PLANTED)
    for key in (("matmul_ceiling", "H100"), ("attention_efficiency", "megatron-core")):
        assert value_of(found.calibration, key) == pytest.approx(PLANTED[key], rel=0.05), key
    for part in parts:
        off = np.log(part.predict(found.calibration) / part.predict(true))
        assert np.abs(off).mean() < (0.05 if "attention" in part.name else 0.03), part.name


def test_what_nothing_measures_stays_the_courses() -> None:
    parts, _ = parts_of(rows_of(PLANTED), H100)
    found, own = fit(H100, parts), calibration()
    changed = {change.key for change in found.changes}
    assert ("inside_efficiency", "H100") not in changed
    assert ("matmul_ceiling", "A100") not in changed
    for name, values in own.values.items():
        same = found.calibration.values[name] == values
        assert same.all() or name in {key[0] for key in changed}


def test_one_outlier_moves_little() -> None:
    rows = rows_of(PLANTED)
    rows[0] = replace(rows[0], seconds=3 * rows[0].seconds)
    found = fit(H100, parts_of(rows, H100)[0])
    assert value_of(found.calibration, ("matmul_ceiling", "H100")) == pytest.approx(0.62, rel=0.03)


def test_a_network_is_recovered_in_a_server_and_between() -> None:
    planted = {
        ("inside_efficiency", "H100"): 0.75,
        ("all_reduce_share", "H100"): 0.7,
        ("across_efficiency", "InfiniBand NDR"): 0.7,
        ("across_latency_s", "InfiniBand NDR"): 3e-5,
    }
    rows = [*network_of(planted, 8), *network_of(planted, 32)]
    found = fit(H100, parts_of(rows, H100)[0])
    for key, value in planted.items():
        assert value_of(found.calibration, key) == pytest.approx(value, rel=0.06), key
    assert {"all_gather, in a server", "all_reduce, between servers"} <= {e.name for e in found.errors}


def test_measurements_are_counted_for_what_they_say_something_of() -> None:
    rows = rows_of(PLANTED)
    counts = {change.key: change.count for change in fit(H100, parts_of(rows, H100)[0]).changes}
    assert counts["half_group_rows", "all"] == len(FULL.experts)
    usual = [shape for shape in FULL.attention if shape[-1] == 128]
    assert counts["attention_efficiency", "megatron-core"] == 2 * len(usual)  # bursts, held
    assert counts["half_rows", "all"] < counts["matmul_ceiling", "H100"]


def test_of_several_libraries_the_fastest_attention_is_taken() -> None:
    rows = [replace(row, how="flash") for row in rows_of(PLANTED) if row.kind.startswith("attention")]
    slower = [replace(row, how="cudnn", seconds=2 * row.seconds) for row in rows]
    parts, said = parts_of([*slower, *rows], H100)
    assert sum(part.seconds.sum() for part in parts) == pytest.approx(
        sum(row.seconds for row in rows if row.inner == 128)
    )
    assert said[0] == "attention of flash taken; 0.50 of it by cudnn"
    assert "attention with heads of 64 left out" in said[1]


def test_how_much_faster_bursts_are_comes_from_calls_that_were_held_too() -> None:
    rows = rows_of(PLANTED)
    slow = [replace(row, seconds=1.2 * row.seconds) if row.held == "sustained" else row for row in rows]
    assert fit(H100, parts_of(slow, H100)[0]).levels["matmul"] == pytest.approx(1.2 * BURSTS, rel=0.01)
    bursts = [row for row in rows if row.held == "short"]
    found = fit(H100, parts_of(bursts, H100)[0])
    assert 0.9 < found.levels["matmul"] < 1.1  # ceiling and level share what bursts alone cannot tell apart
    assert all(error.after < 3 for error in found.errors)


def test_forward_and_backward_are_one_measurement() -> None:
    rows = [row for row in rows_of(PLANTED) if row.kind.startswith("attention")]
    names = [part.name for part in parts_of(rows, H100)[0]]
    assert names == [f"attention, forward and backward, {held}" for held in ("short", "sustained")]
    alone = [row for row in rows if row.kind == "attention_forward"]
    assert parts_of(alone, H100)[0][0].name == "attention, forward, short"


def test_calls_that_time_their_launch_are_left_out() -> None:
    tiny = Row(kind="matmul", groups=1, rows=256, cols=256, inner=256, seconds=9e-6)
    parts, said = parts_of([tiny, *rows_of(PLANTED)], H100)
    assert any("calls below 50 us left out" in line for line in said)
    assert min(part.seconds.min() for part in parts) >= 50e-6


@pytest.mark.parametrize(("seconds", "said"), [(1e-4, "must not exceed the 989"), (1.5, "not milliseconds")])
def test_seconds_in_another_unit_are_refused(seconds: float, said: str) -> None:
    row = Row(kind="matmul", groups=1, rows=8192, cols=8192, inner=8192, seconds=seconds)
    with pytest.raises(ValueError, match=said):
        parts_of([row], H100)


def test_a_share_above_one_is_refused() -> None:
    rows = [Row(kind="all_gather", ranks=8, per_server=8, bytes=2**30, seconds=1e-3) for _ in range(20)]
    with pytest.raises(ValueError, match=r"inside_efficiency of H100 must be at most 1\.1"):
        fit(H100, parts_of(rows, H100)[0])


def test_nothing_to_fit_to_is_said() -> None:
    with pytest.raises(ValueError, match="some measurement must be there"):
        fit(H100, [])


def test_levenberg_marquardt_finds_a_minimum_that_is_known() -> None:
    x = np.linspace(0, 2, 20)
    found = levenberg_marquardt(
        lambda v: v[0] * np.exp(v[1] * x) - 3 * np.exp(-0.7 * x), np.array([1.0, 0.0])
    )
    assert found == pytest.approx([3, -0.7], rel=1e-3)


def test_robust_errors_are_squares_at_first_and_lines_then() -> None:
    assert robust(np.array([0.001]))[0] == pytest.approx(0.001, rel=1e-3)
    small, large = robust(np.array([3.0, 6.0])) ** 2
    assert large / small == pytest.approx(2, rel=0.05)
