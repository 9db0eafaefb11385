"""Numbers outside tensors are found wherever a rank may keep them, and nothing else is."""

import array
import ctypes
import decimal
import gc
import io
import mmap
import sys
import threading
import types

import pytest
import torch

from course_lib.grading.untracked_memory import bytes_outside_tensors
from course_lib.ranks import run_ranks

N = 300


class _Holder:
    pass


def _held(value: object) -> _Holder:
    holder = _Holder()
    holder.value = value
    return holder


def _mapped(data: bytes) -> mmap.mmap:
    kept = mmap.mmap(-1, len(data))
    kept.write(data)
    return kept


KEPT = {
    "a list": lambda v: v.tolist(),
    "rows of a matrix": lambda v: v.view(-1, 5).tolist(),
    "pairs": lambda v: [tuple(pair) for pair in v.view(-1, 2).tolist()],
    "a tuple in a dict": lambda v: {"shard": tuple(v.tolist())},
    "an array of numpy": lambda v: v.numpy().copy(),
    "arrays in a dict of plain values": lambda v: {"a": v.numpy().copy(), "b": 1},
    "bytes": lambda v: v.numpy().tobytes(),
    "array.array": lambda v: array.array("d", v.tolist()),
    "a memory map": lambda v: _mapped(v.numpy().tobytes()),
    "an array of C": lambda v: (ctypes.c_double * N)(*v.tolist()),
    "a closure": lambda v: (lambda kept: lambda: kept)(v.numpy().copy()),
    "an attribute of a function": lambda v: types.SimpleNamespace(kept=v.tolist()),
}
AS_SOMETHING_ELSE = {
    "a text": lambda v: v.numpy().tobytes().decode("latin-1"),
    "a whole number": lambda v: -int.from_bytes(v.numpy().tobytes(), "little"),
    "a file in memory": lambda v: io.BytesIO(v.numpy().tobytes()),
    "a file of text in memory": lambda v: io.StringIO(v.numpy().tobytes().decode("latin-1")),
    "a list of an array": lambda v: list(v.numpy()),
    "keys of a dict": lambda v: dict.fromkeys(v.tolist()),
    "complex numbers": lambda v: [complex(a, b) for a, b in v.view(-1, 2).tolist()],
    "decimals": lambda v: list(map(decimal.Decimal, v.tolist())),
    "the bits of floats": lambda v: tuple(v.view(torch.int64).tolist()),
    "the bits of narrower floats": lambda v: 2 * v[1:].float().view(torch.int32).tolist(),
    "scaled to whole numbers": lambda v: [int(x * 2**52) for x in v.tolist()],
}
NOT_DATA = {
    "a tensor": lambda v: v.clone(),
    "numpy's view of a tensor": lambda v: v.clone().numpy(),
    "offsets": lambda v: list(range(len(v))),
    "ids": lambda v: {id(x): i for i, x in enumerate(v)},
    "names": lambda v: {f"layers.{i}.attention.weight": i for i in range(len(v))},
    "a docstring": lambda v: types.new_class(
        "Documented", exec_body=lambda body: body.update(__doc__="x " * len(v))
    ),
    "settings": lambda v: {"lr": 0.1, "eps": 1e-8, "names": ["a"] * len(v)},
}


def _added(make) -> int:
    gc.collect()
    before = bytes_outside_tensors()
    holder = _held(make(torch.linspace(0, 1, N, dtype=torch.float64)))
    gc.collect()
    after = bytes_outside_tensors()
    del holder
    return after - before


@pytest.fixture(scope="module")
def added() -> dict[str, int]:
    """Counted in a rank, as in a check: a process without the test-suite's own objects."""

    def count() -> dict[str, int]:
        return {name: _added(make) for name, make in {**KEPT, **AS_SOMETHING_ELSE, **NOT_DATA}.items()}

    return run_ranks(count, 1)[0]


@pytest.mark.parametrize("place", KEPT)
def test_numbers_are_found_in(place, added):
    assert 8 * N <= added[place] <= 8 * N + 64


@pytest.mark.parametrize("form", AS_SOMETHING_ELSE)
def test_numbers_are_found_as(form, added):
    assert 0.9 * 8 * N <= added[form] <= 1.1 * 8 * N + 64


@pytest.mark.parametrize("kind", NOT_DATA)
def test_no_data_are(kind, added):
    assert added[kind] < 64


def test_what_other_threads_change_meanwhile_does_no_harm():
    def count() -> int:
        changing, going_on = {i: [1.0] for i in range(5000)}, True

        def change() -> None:
            i = 5000
            while going_on:
                changing[i] = [1.0]
                del changing[i - 5000]
                i += 1

        sys.setswitchinterval(1e-6)
        thread = threading.Thread(target=change)
        thread.start()
        try:
            return max(bytes_outside_tensors() for _ in range(20))
        finally:
            going_on = False
            thread.join()

    assert run_ranks(count, 1)[0] >= 0
