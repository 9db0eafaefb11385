"""Every known way to attack the grader, each as the text of one answer cell or as a file.

`wanted` is what the attacked exercise, `rank_hello` of lab 00, must get: 2 points where the answer is right
and only the rest of the notebook is hostile, 0 where the attack is the answer.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    """`inside`: statements of an answer before a wrong result. `cell`: a hostile cell beside it."""

    name: str
    inside: str = ""
    cell: str = ""
    answer: str = WRONG
    wanted: float = 0.0

    def answer_cell(self) -> str:
        """Return the text of the answer's cell."""
        if not self.inside:
            return self.answer
        body = "\n".join(f"    {line}" for line in self.inside.splitlines())
        return f"def rank_hello(secret):\n{body}\n    return 0, 1, secret\n"


ATTACKS = (
    Attack("endless loop", "while True:\n    pass"),
    Attack("sleep", "import time\ntime.sleep(1000)"),
    Attack("deadlock", "import torch.distributed as d\nif d.get_rank():\n    d.barrier()"),
    Attack("fork bomb", "import os\nwhile True:\n    os.fork()"),
    Attack("memory bomb", "x = []\nwhile True:\n    x.append(bytearray(b'x' * 10**8))"),
    Attack(
        "10 GB file",
        "with open('/tmp/x', 'wb') as f:\n    for _ in range(1000):\n        f.write(bytes(10**7))",
    ),
    Attack("500 MB of output", "for _ in range(500):\n    print('x' * 10**6)"),
    Attack("os._exit(0)", "import os\nos._exit(0)"),
    Attack("sys.exit", "import sys\nsys.exit(0)"),
    Attack("SIGKILL of the parent", "import os\nos.kill(os.getppid(), 9)"),
    Attack("SIGKILL of all it can reach", "import os\nos.kill(-1, 9)"),
    Attack("SIGKILL of the kernel", cell="import os\nos.kill(os.getpid(), 9)", answer=RIGHT, wanted=2.0),
    Attack("reads hidden tests", "from course_lib.grading.verdicts import rank_hello as v\nv.cases(1, True)"),
    Attack("reads others' work", "import os\nassert any('submitted' in d for _, d, _ in os.walk('/'))"),
    Attack("reads the gradebook", "import glob\nassert glob.glob('/**/gradebook.db', recursive=True)"),
    Attack("network", "import socket\nsocket.create_connection(('192.0.2.1', 80), 2)"),
    Attack("patched torch.allclose", "import torch\ntorch.allclose = lambda *a, **k: True"),
    Attack("patched torch.testing", "import torch\ntorch.testing.assert_close = lambda *a, **k: None"),
    Attack(
        "patched grading.check",
        cell="from course_lib import grading\ngrading.check = grading.score = lambda *a: 9.0",
    ),
    Attack("patched builtins", "import builtins\nbuiltins.all = builtins.any = lambda *a: True"),
    Attack(
        "sys.modules", "import sys, types\nsys.modules['course_lib.grading.compare'] = types.ModuleType('x')"
    ),
    Attack(
        "__eq__",
        answer="class Yes(int):\n    __eq__ = lambda *_: True\n    __hash__ = int.__hash__\n\n\n"
        "def rank_hello(secret):\n    return Yes(0), Yes(0), Yes(0)\n",
    ),
    Attack(
        "hostile __reduce__",
        answer="class Bomb:\n    def __reduce__(self):\n        return (__import__('os')._exit, (0,))\n\n\n"
        "def rank_hello(secret):\n    return Bomb(), 1, 2\n",
    ),
    Attack(
        "frame reading",
        "import sys\nf = sys._getframe()\nwhile f:\n    assert 'oracle' not in f.f_globals\n    f = f.f_back",
    ),
    Attack(
        "forged trace file",
        "import glob\nfor f in glob.glob('/tmp/course_ranks_*/trace.*'):\n    open(f, 'w').write('{}')",
    ),
    Attack(
        "an IPython transformer", cell="get_ipython().ast_transformers.append(None)", answer=RIGHT, wanted=2.0
    ),
    Attack(
        "<script>",
        cell="from IPython.display import HTML\nHTML('<script>alert(1)</script>')",
        answer=RIGHT,
        wanted=2.0,
    ),
)
