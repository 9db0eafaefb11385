"""What an answer may not do to reach other ranks, and what it and the libraries may."""

import pytest

from course_lib import grading

RING = """
import torch, torch.distributed as dist
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    {extra}
    grads = [p.grad for p in model.parameters()]
    for grad in grads:
        dist.all_reduce(grad)
        grad /= dist.get_world_size()
    return grads
"""
DOORS = {
    "a file": "open(f'/tmp/{id(x)}.txt', 'w')",
    "pathlib": "import pathlib; pathlib.Path(f'/tmp/{id(x)}.txt').write_text('x')",
    "numpy": "import numpy; numpy.save(f'/tmp/{id(x)}.npy', x.numpy())",
    "torch.save": "torch.save(x, f'/tmp/{id(x)}.pt')",
    "a swallowed error": "\\n    try: open(f'/tmp/{id(x)}.txt', 'w')\\n    except Exception: pass",
    "the store": "dist.distributed_c10d._get_default_store().set(f'{dist.get_rank()}', b'1')",
    "a socket": "import socket; socket.socket().bind(('127.0.0.1', 0))",
    "shared memory": "from multiprocessing import shared_memory as s; s.SharedMemory(create=True, size=8)",
}
OPEN = {
    "printing": "print('here'); import sys; print('there', file=sys.stderr)",
    "reading": "import json; open(json.__file__).read()",
    "a new group": "dist.barrier(); dist.new_group([0])",
    "an import": "import fractions, tabnanny, colorsys",
    "an optimizer": "torch.optim.SGD(model.parameters(), lr=0.0)",
}


def _check(extra: str):
    source = RING.replace("{extra}", extra.replace("\\n", "\n"))
    return grading.check("mean_gradient", [source], quiet=True)


@pytest.mark.parametrize("door", DOORS)
def test_closed(door):
    verdict = _check(DOORS[door])
    assert verdict.gate == "closed"
    assert "through torch.distributed only" in verdict.message


@pytest.mark.parametrize("what", OPEN)
def test_open(what):
    verdict = _check(OPEN[what])
    assert verdict.passed, verdict.render()
