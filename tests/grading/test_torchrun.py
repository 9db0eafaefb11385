"""A training script under torchrun: its report comes back however it ends, and it always ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from course_lib.grading.torchrun import run_script

SCRIPT = """\
import json, os, random, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
    report = {"rank": rank, "drawn": random.random(), "argv": sys.argv[2:], "file": __file__}
    with open(f"{sys.argv[1]}/rank{rank}.json", "w") as file:
        json.dump(report, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("end", ["", "    sys.exit()\n", "    os._exit(0)\n"])
def test_a_script_may_end_right_after_a_backward(tmp_path: Path, end: str) -> None:
    """torch 2.13 can hang at that moment, where process groups end with the script's last reference."""
    done = run_script(SCRIPT + end, 3, [str(tmp_path / "out"), "--more"], tmp_path)
    assert (done["status"], [report["rank"] for report in done["reports"]]) == ("ok", [0, 1, 2])
    assert {report["argv"][0] for report in done["reports"]} == {"--more"}
    assert {report["file"] for report in done["reports"]} == {str(tmp_path / "train.py")}


def test_what_is_not_seeded_differs_between_processes(tmp_path: Path) -> None:
    done = run_script(SCRIPT, 2, [str(tmp_path / "out")], tmp_path)
    assert len({report["drawn"] for report in done["reports"]}) == 2


def test_the_line_that_raised_is_named(tmp_path: Path) -> None:
    text = SCRIPT.replace("    rank = dist.get_rank()", "    rank = 1 / (dist.get_rank() - 1)")
    done = run_script(text, 2, [str(tmp_path / "out")], tmp_path)
    assert (done["status"], done["rank"], done["line"]) == ("failed", 1, 9)
    assert done["error"] == "ZeroDivisionError: division by zero"
