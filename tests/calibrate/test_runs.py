"""Runs of one's own: a planted slowdown is found, each is predicted by the others, bad input."""

from __future__ import annotations

from pathlib import Path

import pytest

from course_lib.calibrate.fit import fit, value_of, with_values
from course_lib.calibrate.parts import Place
from course_lib.calibrate.report import calibrate
from course_lib.calibrate.runs import Runs, read_runs
from course_lib.cost.constants import calibration
from course_lib.cost.hardware import accelerator
from course_lib.planner import report
from course_lib.planner.asked import Asked

H100 = Place(accelerator=accelerator("H100 SXM"), stack="megatron-core", fabric="InfiniBand NDR")
HEAD = "model,gpus,cluster,seq,tokens,layout,step_s"
LAYOUTS = (
    ("llama3-8b", 8, "256K", ""), ("llama3-8b", 64, "1M", ""), ("llama3-8b", 64, "1M", "tp=2"),
    ("llama3-70b", 64, "1M", "tp=4,pp=4"), ("llama3-70b", 256, "4M", "tp=8,pp=4"),
    ("llama3-70b", 256, "4M", "tp=4,pp=8,v=2"), ("llama3-405b", 1024, "8M", "tp=8,pp=16"),
)  # fmt: skip


def file(tmp_path: Path, seconds: list[float] | None = None) -> Path:
    seconds = seconds or [1.0] * len(LAYOUTS)
    lines = [
        f'{name},{gpus},dgx-h100,8K,{tokens},"{layout or "tp=1"}",{s!r}'
        for (name, gpus, tokens, layout), s in zip(LAYOUTS, seconds, strict=True)
    ]
    path = tmp_path / "my_runs.csv"
    path.write_text("\n".join([HEAD, *lines]), encoding="utf-8")
    return path


def planted(tmp_path: Path, ceiling: float, **more: float) -> Runs:
    """Return runs of a cluster whose matmuls reach so much of the peak."""
    empty = read_runs(file(tmp_path))
    slow = with_values(calibration(), {("matmul_ceiling", "H100"): ceiling})
    seconds = empty.part().predict(slow)
    return read_runs(file(tmp_path, [float(s) for s in seconds * more.get("factor", 1.0)]))


def test_runs_are_priced_as_the_plan_prices_them(tmp_path: Path) -> None:
    found = read_runs(file(tmp_path)).part().predict(calibration())
    for (name, gpus, tokens, layout), seconds in zip(LAYOUTS, found, strict=True):
        asked = Asked(model=name, gpus=str(gpus), cluster="dgx-h100", seq="8K", tokens=tokens)
        assert seconds == pytest.approx(report.priced(layout or "tp=1", asked.request()).step_s[0], rel=1e-12)


def test_a_planted_slowdown_is_found(tmp_path: Path) -> None:
    found = fit(H100, [], planted(tmp_path, 0.66))
    assert value_of(found.calibration, ("matmul_ceiling", "H100")) == pytest.approx(0.66, rel=0.03)
    (error,) = found.errors
    assert error.before > 6
    assert error.after < 1


def test_each_run_is_predicted_by_the_others(tmp_path: Path) -> None:
    found = fit(H100, [], planted(tmp_path, 0.66))
    assert found.left_out is not None
    assert found.left_out.count == len(LAYOUTS)
    assert found.left_out.after < 0.3 * found.left_out.before


def test_steps_alone_leave_the_curve_of_matmuls_as_it_is(tmp_path: Path) -> None:
    changed = {change.key[0] for change in fit(H100, [], planted(tmp_path, 0.66)).changes}
    assert "matmul_ceiling" in changed
    assert not any(name.startswith("half_") for name in changed)


def test_it_says_when_what_was_left_out_is_predicted_worse(tmp_path: Path) -> None:
    empty = read_runs(file(tmp_path))
    noise = [1.15, 1.15, 0.9, 1.1, 0.9, 0.9, 1.1]
    seconds = empty.part().predict(calibration()) * noise
    text = calibrate(None, file(tmp_path, [float(s) for s in seconds])).text
    assert "runs, each layout by a fit to the others" in text
    assert "warning: what the fit did not see is predicted worse than before" in text


def test_runs_of_one_layout_are_left_out_one_by_one(tmp_path: Path) -> None:
    rows = [f'llama3-8b,{n},dgx-h100,8K,{32 * n}K,"tp=1",{3.1 + n / 1e4}' for n in (8, 16, 32, 64)]
    path = tmp_path / "same.csv"
    path.write_text("\n".join([HEAD, *rows]), encoding="utf-8")
    assert "runs, each run by a fit to the others" in calibrate(None, path).text
    path.write_text("\n".join([HEAD, *rows[:3]]), encoding="utf-8")
    assert "with four runs or more each would also be predicted" in calibrate(None, path).text


def test_runs_of_two_gpus_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "two.csv"
    rows = ["llama3-8b,8,dgx-h100,8K,256K,tp=1,1.0", "llama3-8b,8,dgx-h200,8K,256K,tp=1,1.0"]
    path.write_text("\n".join([HEAD, *rows]))
    with pytest.raises(ValueError, match="on one kind of GPU; got H100 SXM, H200"):
        read_runs(path)


@pytest.mark.parametrize(
    ("head", "row", "said"),
    [
        (
            HEAD,
            "llama3-8b,8,dgx-h100,8K,256K,tp=1,-1",
            "line 2 of own.csv: step_s must be a number more than 0",
        ),
        (HEAD, "llama3-8b,8,dgx-h100,8K,256K,tp=1,830 ms", "got '830 ms'"),
        (HEAD, "llama3-8b,8,,8K,256K,tp=1,1.0", "must name its cluster or its gpu"),
        (HEAD, "llama3-8b,8,dgx-h100,8K,256K,,1.0", "got none for layout"),
        (HEAD, "llama9,8,dgx-h100,8K,256K,tp=1,1.0", "line 2 of own.csv: --model must be one of"),
        (HEAD, "llama3-8b,8,dgx-h100,8K,256K,tp=3,1.0", "line 2 of own.csv"),
        (HEAD, "llama3-8b,8,dgx-h100,8K,256K,tp=1,pp=2,1.0", "Put a cell with commas in quotes"),
        (HEAD, "", "must have one row or more"),
        ("model,gpus", "llama3-8b,8", "Add seq, tokens, layout, step_s"),
        (HEAD.replace("cluster", "clusters"), "llama3-8b,8,dgx-h100,8K,256K,tp=1,1.0", "got clusters"),
    ],
)
def test_what_cannot_be_is_one_sentence(tmp_path: Path, head: str, row: str, said: str) -> None:
    path = tmp_path / "own.csv"
    path.write_text(f"{head}\n{row}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        read_runs(path)
