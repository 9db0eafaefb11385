"""What an exercise closes cannot be reached, whichever way it is tried; what stays open works."""

import pytest
import torch.distributed as dist
from helpers import HELLO, run

from course_lib.grading.import_guard import _COLLECTIVES, closed_ops, torch_entries
from course_lib.grading.report import render

MODULE = "course_lib.model.transformer"  # stands for a module that solves an exercise

IMPORT_CHEATS = {
    "import in the cell": f"import {MODULE} as m\n" + HELLO,
    "from import under an alias": "from course_lib.model import transformer as harmless\n" + HELLO,
    "import in the function": HELLO.replace("    total =", f"    import {MODULE}\n    total ="),
    "getattr on the package": HELLO.replace(
        "    total =",
        "    import course_lib.model\n    import importlib\n"
        "    importlib.import_module('course_lib.model.' + 'transformer')\n    total =",
    ),
    "the error is swallowed": HELLO.replace(
        "    total =", f"    try:\n        import {MODULE}\n    except Exception:\n        pass\n    total ="
    ),
    "the oracle": "from course_lib.grading.labs.lab00_start_here import rank_hello as answers\n" + HELLO,
}


@pytest.mark.parametrize("cheat", IMPORT_CHEATS)
def test_closed_module_is_refused(cheat):
    verdict = run(IMPORT_CHEATS[cheat], closed=(MODULE,))
    assert verdict.gate == "closed"
    assert "asks you to write this" in verdict.message
    assert verdict.score == 0


def test_other_modules_stay_open():
    assert run(
        "import course_lib.model.attention\nimport course_lib.config\n" + HELLO, closed=(MODULE,)
    ).passed


DDP_CHEATS = {
    "name": "torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))",
    "alias": "DDP(torch.nn.Linear(1, 1))",
    "getattr": "getattr(torch.nn.parallel, 'Distributed' + 'DataParallel')(torch.nn.Linear(1, 1))",
    "subclass": "type('Mine', (DDP,), {})(torch.nn.Linear(1, 1))",
    "subclass with its own init": "type('Mine', (DDP,), {'__init__': lambda self: None})()",
    "replicate": "__import__('torch.distributed._composable', fromlist=['replicate'])"
    ".replicate(torch.nn.Linear(1, 1))",
    "reducer": "dist.Reducer([total], [[0]], [1], dist.group.WORLD)",
    "reducer by its module": "torch._C._distributed_c10d.Reducer([total], [[0]], [1], dist.group.WORLD)",
}


@pytest.mark.parametrize("cheat", DDP_CHEATS)
def test_closed_ddp_is_refused(cheat):
    text = "from torch.nn.parallel import DistributedDataParallel as DDP\n" + HELLO
    text = text.replace("    dist.all", f"    {DDP_CHEATS[cheat]}\n    dist.all")
    verdict = run(text, closed=("torch:ddp",))
    assert verdict.gate == "closed", render(verdict)


ALL_REDUCE_CHEATS = {
    "name": "dist.all_reduce(total)",
    "group method": "dist.group.WORLD.allreduce([total]).wait()",
    "own module": "dist.distributed_c10d.all_reduce(total)",
    "operator": "torch.ops.c10d.allreduce_([total], dist.group.WORLD.boxed(), "
    "torch.classes.c10d.ReduceOp(), None, True, -1)",
    "functional": "total = __import__('torch.distributed._functional_collectives', fromlist=['x'])"
    ".all_reduce(total, 'sum', dist.group.WORLD)",
    "functional operator": "total = torch.ops._c10d_functional.all_reduce"
    "(total, 'sum', dist.group.WORLD.group_name)",
    "differentiable": "total = __import__('torch.distributed.nn', fromlist=['x']).all_reduce(total)",
}


@pytest.mark.parametrize("cheat", ALL_REDUCE_CHEATS)
def test_closed_collective_is_refused(cheat):
    text = HELLO.replace("dist.all_reduce(total)", ALL_REDUCE_CHEATS[cheat])
    verdict = run(text, closed=("torch:collectives:all_reduce",))
    assert verdict.gate == "closed", render(verdict)


def test_every_function_of_every_collective_is_closed_under_its_own_name():
    everything = tuple(f"torch:collectives:{name}" for name in _COLLECTIVES)
    functions = [word for words, *_ in _COLLECTIVES.values() for word in words.split()]
    assert all(hasattr(dist, name) for name in functions if not name.endswith(("_coalesced", "_single")))
    look = (
        f"[n for n in {functions!r} if hasattr(dist, n) and not hasattr(getattr(dist, n), '__closed_here__')]"
    )
    text = HELLO.replace("    dist.all_reduce(total)", f"    raise RuntimeError({look})")
    assert "raised RuntimeError: []" in run(text, closed=everything).message
    message = run(HELLO, closed=everything).message
    assert "torch.distributed.all_reduce is closed here" in message, message


def test_other_collectives_stay_open():
    text = HELLO.replace(
        "    dist.all_reduce(total)",
        "    parts = [torch.zeros_like(total) for _ in range(2)]\n    dist.all_gather(parts, total)\n"
        "    total = sum(parts)",
    )
    verdict = run(text, closed=("torch:collectives:all_reduce",))
    assert verdict.gate == ""
    assert verdict.lost == ("bytes",)


@pytest.mark.parametrize(
    ("group", "line"),
    [
        ("torch:fsdp", "from torch.distributed.fsdp import fully_shard; fully_shard(torch.nn.Linear(1, 1))"),
        ("torch:zero", "from torch.distributed.optim import ZeroRedundancyOptimizer as Z; Z([])"),
        ("torch:checkpoint", "from torch.utils.checkpoint import checkpoint as c; c(torch.sin, total)"),
        ("torch:mesh", "dist.init_device_mesh('cpu', (2,))"),
        ("torch:dtensor", "from torch.distributed.tensor import DTensor; DTensor.from_local(total)"),
        ("torch:sampler", "from torch.utils.data import DistributedSampler as S; S([1, 2])"),
        ("torch:join", "from torch.distributed.algorithms.join import Join; Join([])"),
        (
            "torch:pipelining",
            "from torch.distributed.pipelining import PipelineStage as P; P(None, 0, 1, None)",
        ),
    ],
)
def test_torch_groups(group, line):
    verdict = run(HELLO.replace("    dist.all", f"    {line}\n    dist.all"), closed=(group,))
    assert verdict.gate == "closed", render(verdict)


def test_class_of_a_closed_module_given_as_object():
    from course_lib.model.transformer import Transformer

    verdict = run(Transformer, closed=(MODULE,), symbol="Transformer", signature="")
    assert verdict.gate == "closed"
    assert MODULE in verdict.message


def test_subclass_of_a_closed_class_given_as_object():
    from torch.nn.parallel import DistributedDataParallel

    class rank_hello(DistributedDataParallel):
        pass

    assert run(rank_hello, closed=("torch:ddp",), signature="").gate == "closed"


def test_unknown_group_is_named():
    with pytest.raises(ValueError, match="torch:dpp"):
        torch_entries("torch:dpp")


def test_names_in_the_trace():
    assert closed_ops(("torch:collectives:all_gather", "torch:ddp")) == {"all_gather", "all_gather_single"}
