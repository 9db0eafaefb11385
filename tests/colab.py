"""Every lab from top to bottom as on Colab: `make colab`. Not part of `make test`, since it downloads.

Each notebook is alone in an empty folder, in a new environment with Colab's versions of what a kernel is
made of, without nbgrader; its first cell installs the course from a repository served on this machine.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from nbclient.exceptions import CellExecutionError
from test_single_file import ROOT, WITHOUT_NBGRADER, cells, published, python, run, text

import course_grader as grading

__all__ = ["published", "python"]  # fixtures

# What Colab's machines had in autumn 2025; torch and the rest are those of this environment.
KERNEL = ["ipython==7.34.0", "ipykernel==6.17.1", "ipywidgets==7.7.1", "traitlets==5.7.1", "tornado==6.5.1"]
VERSIONS = (
    "import IPython, ipykernel, ipywidgets\nprint(IPython.__version__, ipykernel.__version__, "
    "ipywidgets.__version__)"
)
LABS = sorted(path.parent.name for path in ROOT.glob("solutions/*/*.ipynb"))


@pytest.fixture(scope="module")
def colab(python: Path) -> Path:
    """The new environment with Colab's kernel."""
    subprocess.run([python, "-m", "pip", "install", "--quiet", *KERNEL], check=True)
    return python


@pytest.mark.parametrize("lab", LABS)
def test_a_lab_runs_as_on_colab(lab: str, published: Path, colab: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(ROOT / "solutions" / lab / f"{lab}.ipynb", as_version=4)
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    done = run(tmp_path, colab, f"file://{published}", [WITHOUT_NBGRADER, VERSIONS, *sources])
    assert text(done[1]).split()[:2] == [KERNEL[0].split("==")[1], KERNEL[1].split("==")[1]]
    complaints = [o.text for cell in done for o in cell.outputs if o.get("name") == "stderr"]
    assert complaints == []
    passed = {
        line.split()[1] for cell in done for line in text(cell).splitlines() if line.startswith("PASS ")
    }
    assert passed == {exercise.id for exercise in grading.exercises(lab)}
    print(
        f"\n{lab}: {len(passed)} exercises pass with IPython, ipykernel, ipywidgets {text(done[1]).strip()}"
    )


def test_an_unwritten_exercise_is_explained_on_colab(published: Path, colab: Path, tmp_path: Path) -> None:
    stub = 'def mean_gradient():\n    raise NotImplementedError("exercise mean_gradient")'
    with pytest.raises(CellExecutionError, match="This cell needs your answer to the exercise mean_gradient"):
        run(tmp_path, colab, f"file://{published}", [*cells("course-set-up"), stub, "mean_gradient()"])
