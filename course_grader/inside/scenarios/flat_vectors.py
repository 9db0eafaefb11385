"""Call `flatten_and_shard` or `unflatten`, plain functions of tensors, on every rank.

Options: direction: "flatten", impl(tensors, rank, world_size) between the marks "begins" and "ends"; or
"unflatten", impl(flat, shapes) on a flat vector that begins params["begin"] elements inside a longer one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Size, Tensor, cat

from course_grader.exercise import GateFailed
from course_grader.inside.probe import Probe, storage_address
from course_grader.why import Why

PADDING = "padding"


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Return what the answer made, and what it left of its arguments."""
    if params["options"]["direction"] == "flatten":
        return _flatten(impl, params, inputs, probe)
    return _unflatten(impl, params, inputs)


def _flatten(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    tensors = [inputs[f"tensor {i}"] for i in range(len(params["shapes"]))]
    for tensor in tensors:
        tensor.sum()  # the trace sees them before "begins"
    homes = [storage_address(tensor) for tensor in tensors]
    total = sum(tensor.numel() for tensor in tensors)
    probe.mark("begins")
    shard = impl(tensors, probe.rank, probe.world_size)
    probe.mark("ends")
    for i, home in enumerate(homes):
        if storage_address(inputs[f"tensor {i}"]) != home:
            raise GateFailed(
                "inputs", Why(f"tensor {i} must stay as it was", "its numbers now lie elsewhere")
            )
    return {**_apart(shard, probe, total), "number of tensors in the list": len(tensors)}


def _apart(shard: Any, probe: Probe, total: int) -> dict[str, Any]:
    """The shard with zeros for padding, and the padding: what is wrong with each is told apart."""
    if not isinstance(shard, Tensor) or shard.dim() != 1:
        return {"shard": shard}
    used = min(max(total - probe.rank * len(shard), 0), len(shard))
    padding: list[float] = shard[used:].tolist()
    if padding:
        shard = shard.clone()
        shard[used:] = 0
    return {"shard": shard, PADDING: padding}


def _unflatten(impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor]) -> dict[str, Any]:
    longer = cat([inputs["flat"][: params["begin"]] + 1, inputs["flat"]])  # its beginning is not flat's
    flat = longer[params["begin"] :]
    address = storage_address(longer)  # before: the answer may give `flat` other memory
    impl(flat * 2, [Size(shape) for shape in params["shapes"]])  # must not matter
    tensors = impl(flat, [Size(shape) for shape in params["shapes"]])
    if not isinstance(tensors, list | tuple):
        raise GateFailed(
            "shape", Why("the result must be a list of tensors", f"got {type(tensors).__name__}")
        )
    shared = [t.numel() == 0 or storage_address(t) == address for t in tensors]
    named = {f"tensor {i}": tensor.clone() for i, tensor in enumerate(tensors)}
    return {**named, "number of tensors": len(tensors), "shared": shared, "flat vector": flat.clone()}
