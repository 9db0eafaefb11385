"""Run one case on fresh ranks and hand back plain data, or the gate that failed.

A launcher is the seam between the engine, which knows seed and oracle, and where student code runs: in
notebooks and tests that is here; the judge of `course autograde` passes one that runs them in a sandbox.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from course_lib.grading.exercise import Array, Case, Part, RankData
from course_lib.grading.rank_worker import Job, rank_job
from course_lib.grading.source import not_written
from course_lib.ranks import RanksError, report, run_ranks

Shards = Sequence[Mapping[str, Array]]  # one rank's inputs each
Launcher = Callable[[Job, Case, Shards], list[RankData]]
report.hide_frames_of(os.path.dirname(__file__))


class CaseFailed(Exception):
    """A gate failed before there was anything to compare; output is what the ranks printed."""

    def __init__(self, gate: str, message: str, output: tuple[list[str], list[str]] | None = None) -> None:
        super().__init__(message)
        self.part = Part(gate, False, message, gate=True)
        self.output = output


def run_here(
    job: Job,
    case: Case,
    shards: Shards,
    on_rank: Callable[[Job], Any] = rank_job,
    read: Callable[[Any], dict[str, Any]] = dict,
) -> list[RankData]:
    """Run one case on fresh ranks of this machine; each takes its own shard from a file.

    `on_rank`: what a rank does; `read` makes of what it returns what `rank_job` returns.

    Raises: CaseFailed when a gate fails that needs no comparison.
    """
    with tempfile.TemporaryDirectory(prefix="course_inputs_") as inbox:
        for rank, shard in enumerate(shards):
            arrays: dict[str, Any] = dict(shard)
            np.savez(os.path.join(inbox, f"{rank}.npz"), **arrays)
        try:
            results = run_ranks(
                on_rank,
                case.world_size,
                dataclasses.replace(job, inbox=inbox),
                timeout_s=case.timeout_s,
                device="cpu",
                trace=case.trace,
                quiet=True,
                seed=0,  # of torch's generators; the data's seed stays outside
            )
            found = [read(result) for result in results]
        except RanksError as error:
            raise _failure(job.exercise_id, error) from error
        except Exception as error:
            raise CaseFailed("runs", f"the ranks could not run: {type(error).__name__}: {error}") from error
    unseen = next((w for w in results.warnings if "in another thread" in w), None)
    if unseen is not None and case.trace:
        raise CaseFailed("closed", f"what ranks send must be seen, or it cannot be judged; {unseen}.")
    broken = next((w for w in results.warnings if "never completed" in w), None)
    if broken is not None:
        raise CaseFailed("terminates", f"every rank must make the same calls; {broken}.")
    for rank, result in enumerate(found):
        _refuse(rank, result)
    return [
        RankData(r["tensors"], r["values"], results.trace[rank] if case.trace else None, r["dtypes"])
        for rank, r in enumerate(found)
    ]


def _refuse(rank: int, result: dict[str, Any]) -> None:
    if "refused" in result:
        raise CaseFailed(*result["refused"])
    if result["reached"]:
        raise CaseFailed("closed", result["reached"][0])
    if result["mutated"]:
        name = result["mutated"][0]
        text = f"input `{name}` must stay as it was; rank {rank} changed it in place. Use a copy: x.clone()."
        raise CaseFailed("inputs", text)


def _failure(exercise_id: str, error: RanksError) -> CaseFailed:
    """Which gate a world that did not return fails."""
    types_ = {failure.type: failure for failure in reversed(list(error.errors.values()))}
    output = (error.stdout, error.stderr)
    if "ClosedHere" in types_:
        return CaseFailed("closed", types_["ClosedHere"].message, output)
    if "NotWritten" in types_:
        return CaseFailed("implemented", types_["NotWritten"].message, output)
    missing = types_.get("NotImplementedError")
    if missing is not None and (not missing.message or missing.message.startswith("exercise ")):
        return CaseFailed("implemented", not_written(exercise_id).message, output)
    if "Refusal" in types_:
        return CaseFailed("implemented", types_["Refusal"].message, output)
    gate = "terminates" if error.kind in ("hang", "mismatch", "timeout") else "runs"
    return CaseFailed(gate, str(error), output)
