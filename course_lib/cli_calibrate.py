"""`course calibrate`: a GPU measured, and constants of one's own for `course plan --constants`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Fit the planner's constants to your own GPU and runs.")


@app.command()
def measure(
    out: Annotated[Path, typer.Option(metavar="FILE", help="the CSV to write, a row per measurement")],
    device: Annotated[str, typer.Option(help="cuda; cpu, with small sizes, to try the command")] = "cuda",
    seconds: Annotated[float, typer.Option(help="about how long kernels are timed")] = 180.0,
) -> None:
    """Time matmuls, attention and a copy on this GPU.

    Collectives, too, under torchrun: torchrun --nproc-per-node 8
    -m course_lib.calibrate.measure --out my_gpu.csv
    """
    from course_lib.calibrate.measure import measure as run

    for line in run(str(out), device, seconds):
        typer.echo(line)


@app.command()
def fit(
    out: Annotated[Path, typer.Option(metavar="FILE", help="the constants, for course plan --constants")],
    measured: Annotated[
        Path | None, typer.Argument(metavar="MY_GPU.csv", help="a file of `course calibrate measure`")
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="a CSV of your runs: model, gpus, cluster, ..., step_s"),
    ] = None,
    gpu: Annotated[str, typer.Option(help='which was measured, "H100 SXM"; empty: as the file says')] = "",
    network: Annotated[str, typer.Option(help='of a GPU between servers, "400 Gb/s"; empty: usual')] = "",
    fabric: Annotated[str, typer.Option(help='EFA, RoCE, "InfiniBand NDR", ...; empty: InfiniBand')] = "",
) -> None:
    """Make constants of measurements, of runs, or of both.

    Prints each beside the course's, and errors before and after.
    """
    from course_lib.calibrate.report import calibrate

    if not out.absolute().parent.is_dir():
        raise ValueError(f"--out must lie in a folder that exists; got {out}. Make it first.")
    if out.absolute() in {path.absolute() for path in (measured, runs) if path}:
        raise ValueError(f"--out must be another file than those that are read; got {out}. Rename it.")
    answer = calibrate(measured, runs, gpu, network, fabric)
    out.write_text(answer.constants, encoding="utf-8")
    typer.echo(f"{answer.text}\n-> {out}: course plan --constants {out}")
