"""Run `unflatten` in a rank; no communication."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Size, Tensor, cat

from course_lib.grading.probe import Probe, storage_address
from course_lib.grading.source import Refusal


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Return the tensors, and which of them share the flat vector's storage."""
    del probe
    longer = cat([inputs["flat"][: params["begin"]] + 1, inputs["flat"]])  # its beginning is not flat's
    flat = longer[params["begin"] :]
    address = storage_address(longer)  # before: the answer may give `flat` other memory
    impl(flat * 2, [Size(shape) for shape in params["shapes"]])  # must not matter
    tensors = impl(flat, [Size(shape) for shape in params["shapes"]])
    if not isinstance(tensors, list | tuple):
        raise Refusal("shape", f"the result must be a list of tensors; got {type(tensors).__name__}.")
    shared = [t.numel() == 0 or storage_address(t) == address for t in tensors]
    named = {f"tensor {i}": tensor.clone() for i, tensor in enumerate(tensors)}
    return {**named, "number of tensors": len(tensors), "shared": shared, "flat vector": flat.clone()}
