"""Show a bar of steps while they run, on one process or on ranks: rank 0 writes lines, the caller reads.

What ranks print is kept until they end, so a bar of their own would be seen too late.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tqdm import tqdm

POLL_S = 0.2


def write_line(path: Path, metrics: dict[str, Any], *, is_first: bool) -> None:
    """Add a step's metrics to a file as a line of JSON; the first step begins the file anew."""
    with path.open("w" if is_first else "a", encoding="utf-8") as file:
        file.write(json.dumps(metrics) + "\n")


@contextmanager
def bar_of_steps(num_steps: int) -> Iterator[Path]:
    """Give a file for `write_line`, and show a bar of its lines on stderr until the block ends."""
    with TemporaryDirectory() as folder:
        path, ended = Path(folder) / "steps.jsonl", threading.Event()
        path.touch()
        watcher = threading.Thread(target=_watch, args=(path, num_steps, ended), daemon=True)
        watcher.start()
        try:
            yield path
        finally:
            ended.set()
            watcher.join()


def _watch(path: Path, num_steps: int, ended: threading.Event) -> None:
    with tqdm(total=num_steps, unit="step", mininterval=0) as bar, path.open(encoding="utf-8") as lines:
        is_last_look = False
        while not is_last_look:
            is_last_look = ended.wait(POLL_S)
            if found := [json.loads(line) for line in iter(lines.readline, "")]:
                step = found[-1]
                bar.set_postfix(loss=f"{step['loss']:.3f}", mfu=f"{step['mfu']:.1%}", refresh=False)
                bar.update(len(found))
