"""Read a training script by `ast` and name what looks wrong in it: said after a failure, never a verdict."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator


def hints(text: str, kind: str) -> str:
    """Return "Look at line 9: ..." for what may explain a failure; "" if nothing is seen.

    kind: "port" (it waits), "start" (it stops), "values" (it trains something else), "order" (the sampler).
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ""
    found = list(dict.fromkeys(_FINDERS[kind](tree)))
    return f"Look at {'; and at '.join(found[:2])}." if found else ""


def _port(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any("MASTER_PORT" in ast.unparse(t) for t in node.targets):
            yield f"line {node.lineno}: a fixed port; torchrun has already put a free one there"
        if isinstance(node, ast.Constant) and re.search(r"tcp://.*:\d+", str(node.value)):
            yield f"line {node.lineno}: a fixed port; leave init_method out, and torchrun's is used"


def _start(tree: ast.AST) -> Iterator[str]:
    """What makes it stop on a machine without GPUs."""
    uses_gpus = any(isinstance(node, ast.Attribute) and node.attr == "gpus" for node in ast.walk(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in ("nccl", "cuda") and not uses_gpus:
            yield f'line {node.lineno}: "{node.value}" whatever --gpus says'
        if isinstance(node, ast.keyword) and node.arg == "device_ids" and isinstance(node.value, ast.List):
            yield f"line {node.value.lineno}: device_ids is for GPUs; without them it must be None"
    if uses_gpus:
        return
    yield "--gpus, which the script never reads"


def _values(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Attribute):
            yield f"line {node.lineno}: `{ast.unparse(node)}` has no (), so nothing is called"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "module":
            yield f"line {node.lineno}: .module(...) goes round the wrapper that averages the gradients"
    names = {
        node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    text = ast.unparse(tree)
    if "fully_shard" in text:
        yield from _sharded(tree)
    elif "DistributedDataParallel" not in text:
        yield "the model: neither DistributedDataParallel nor fully_shard has it"
    elif "zero_grad" not in names and ".zero_grad" not in ast.unparse(tree):
        yield "the loop: gradients are never cleared"


def _sharded(tree: ast.AST) -> Iterator[str]:
    """What FSDP2 does not do that DDP does: send rank 0's weights."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if ast.unparse(node.func).endswith("manual_seed") and "rank" in ast.unparse(node):
            yield f"line {node.lineno}: each process draws other weights, and fully_shard sends none"


def _order(tree: ast.AST) -> Iterator[str]:
    if "set_epoch" not in ast.unparse(tree):
        yield "the loop over epochs: nothing tells the sampler which one begins (sampler.set_epoch)"


_FINDERS = {"port": _port, "start": _start, "values": _values, "order": _order}
