"""One way to attack the grader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

RIGHT = """\
import torch
import torch.distributed as dist


def rank_hello(secret):
    total = torch.tensor(secret)
    dist.all_reduce(total)
    return dist.get_rank(), dist.get_world_size(), int(total)
"""
WRONG = "def rank_hello(secret):\n    return 0, 1, secret\n"


@dataclass(frozen=True)
class Attack:
    """One attack.

    Attributes:
        inside: statements of an answer before a wrong result.
        cell: a hostile cell beside it.
        answer: the whole text of the answer.
        edit: changes the notebook.
        student: the name it is submitted under, where that is the attack.
    """

    name: str
    inside: str = ""
    cell: str = ""
    answer: str = WRONG
    wanted: float = 0.0
    state: str = ""
    edit: Callable[[Any], None] | None = None
    student: str = ""

    def answer_cell(self) -> str:
        """Return the text of the answer's cell."""
        if not self.inside:
            return self.answer
        body = "\n".join(f"    {line}" for line in self.inside.splitlines())
        return f"def rank_hello(secret):\n{body}\n    return 0, 1, secret\n"
