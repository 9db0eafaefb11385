"""Attacks on the count of memory: a vector that must be gone is kept as something that is no tensor.

The judge runs them in its sandbox. Each must keep the points of its values, and lose those of memory.
"""

from __future__ import annotations

import pytest

from course_lib.grading.registry import get
from course_lib.staff import judge

_ANSWER = """\
import io
import torch

KEPT = []


def flatten_and_shard(tensors, rank, world_size):
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    size = -(-len(flat) // world_size)
    padded = torch.nn.functional.pad(flat, (0, world_size * size - len(flat)))
    array = padded.numpy()
    KEPT.append(FORM)
    return padded[rank * size : (rank + 1) * size].clone()
"""
FORMS = {
    "a text": "array.tobytes().decode('latin-1')",
    "a whole number": "int.from_bytes(array.tobytes(), 'little')",
    "a file in memory": "io.BytesIO(array.tobytes())",
    "a list of an array": "list(array)",
    "complex numbers": "[complex(x, 0) for x in padded.tolist()]",
    "a tuple of whole numbers": "tuple(int(x * 2**52) for x in padded.tolist())",
    "pairs of whole numbers": "[(int(x * 2**26), int(x * 2**52)) for x in padded.tolist()]",
}


def _parts(form: str) -> dict[str, bool]:
    exercise = get("flatten_and_shard")
    found = judge.judge_cells([_ANSWER.replace("FORM", form)], [exercise], seed=1)
    verdict = found.verdicts[exercise.id]
    return {name: part.ok for name, part in verdict.parts.items()}


@pytest.mark.needs("bubblewrap")
def test_an_answer_that_keeps_nothing_has_full_marks() -> None:
    assert _parts("len(array)") == {"values": True, "memory": True}


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize("form", FORMS)
def test_memory_is_lost_by_a_vector_kept_as(form: str) -> None:
    assert _parts(FORMS[form]) == {"values": True, "memory": False}
