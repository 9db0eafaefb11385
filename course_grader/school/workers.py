"""Grade many submissions at a time: processes of this machine, or the workers of a Dask cluster.

A worker that dies ends nothing else. The submissions it may have been grading are graded again, one at a
time; one that kills its worker a second time is reported and left out.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from typing import Any, cast

from joblib.externals.loky import ProcessPoolExecutor

from course_grader.school.grade_one import Options, Outcome, failed, grade
from course_grader.school.ledger import Entry
from course_grader.school.submissions import Submission

SCHEDULER_S = 20  # to find a Dask scheduler
Task = tuple[Submission, Entry | None]
Work = Callable[[Options, Submission, Entry | None], Outcome]


def outcomes(
    options: Options, tasks: Sequence[Task], *, jobs: int = 1, dask: str | None = None, work: Work = grade
) -> Generator[tuple[Submission, Outcome], None, None]:
    """Yield each submission with what a worker found, in the order in which they end.

    Args:
        jobs: processes of this machine.
        dask: address of a Dask scheduler whose workers take their place, "tcp://host:8786".
        work: what a worker does.

    Raises: ValueError if no scheduler answers there.
    """
    left = {one.student: (one, known) for one, known in tasks}
    suspects: list[str] = []
    while left:
        alone = suspects.pop(0) if suspects else ""
        batch = {alone: left[alone]} if alone else dict(left)
        for student, outcome in _round(options, batch, 1 if alone else jobs, dask, work):
            yield left.pop(student)[0], outcome
        if alone in left:
            one, _ = left.pop(alone)
            why = "its worker was ended: out of memory?"
            yield one, Outcome(failed(options, one, one.digest(), why))
        elif not alone and left:
            suspects = list(left)[: 2 * jobs]  # taken in this order: one of these killed its worker


def _round(
    options: Options, batch: dict[str, Task], jobs: int, dask: str | None, work: Work
) -> Iterator[tuple[str, Outcome]]:
    """Yield what ends; nothing for a submission whose worker died."""
    with _executor(jobs, dask) as executor:
        futures: dict[Future[Outcome], str] = {
            executor.submit(work, options, one, known): student for student, (one, known) in batch.items()
        }
        for future in as_completed(futures):
            with contextlib.suppress(BrokenExecutor, _WorkerDied):
                yield futures[future], _result(future)


class _WorkerDied(Exception):
    """A worker of the cluster ended without a result."""


def _result(future: Future[Outcome]) -> Outcome:
    try:
        return future.result()
    except Exception as error:
        if type(error).__name__ == "KilledWorker":  # distributed's; it need not be installed
            raise _WorkerDied(str(error)) from error
        raise


@contextlib.contextmanager
def _executor(jobs: int, dask: str | None) -> Iterator[Executor]:
    if dask is not None:
        with _cluster(dask) as executor:
            yield executor
        return
    pool = ProcessPoolExecutor(max_workers=jobs, initializer=_end_with, initargs=(os.getpid(),))
    finished = False
    try:
        yield cast(Executor, pool)
        finished = True
    finally:
        pool.shutdown(wait=finished, kill_workers=not finished)


@contextlib.contextmanager
def _cluster(address: str) -> Iterator[Executor]:
    import distributed

    try:
        client = cast(Any, distributed).Client(address, timeout=SCHEDULER_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"there must be a Dask scheduler at {address}; got {type(error).__name__}. "
            "Start one with `dask scheduler`, and workers with `dask worker ADDRESS --nthreads 1`"
        ) from error
    with client:
        yield client.get_executor(pure=False, retries=0)


def _end_with(parent: int) -> None:
    """End this worker, and with it its sandboxes, when the command that started it is killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
