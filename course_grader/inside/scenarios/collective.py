"""Call an answer on this rank's tensor, in its group; ranks outside all groups keep theirs.

Options: returns (name of the result), or in_place (the answer writes into a copy, whose memory is handed back
as well); arguments (after the tensor): "group", "numel" (elements of the case's shape), "inside" and "across"
(groups of params["server_size"] neighbours, and of the ranks at one place of their servers),
"reduce_scatter", "all_gather" and "all_reduce_" (supplied), or params; flat (who is outside has its tensor
1-D).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from torch import Tensor

from course_grader.inside.probe import Probe
from course_grader.inside.ring_groups import calls, group_of, in_memory, make_group
from course_grader.inside.scenarios import rings

_SUPPLIED = {
    name: getattr(rings, f"supplied_{name}") for name in ("reduce_scatter", "all_gather", "all_reduce_")
}


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Return the result; in a case that calls again, those of the later calls, too."""
    options = params["options"]
    group, takes_part = group_of(params, probe)
    known = {"group": group, "numel": prod(params["shape"]), **_SUPPLIED, **_servers(params, probe), **params}
    names = options.get("arguments", ("group",))

    def call(tensor: Tensor, **instead: Any) -> Any:
        if takes_part:
            return impl(tensor, *({**known, **instead}[name] for name in names))
        return tensor.flatten() if options.get("flat") else tensor

    if not options.get("in_place"):
        return calls(options["returns"], call, inputs["tensor"], params)
    if params.get("again"):  # from another root first
        call(inputs["tensor"].clone(), root=(params["root"] + 1) % probe.world_size)
    tensor, memory = in_memory(inputs["tensor"])
    call(tensor)
    return {"tensor": tensor, "memory": memory}


def _servers(params: dict[str, Any], probe: Probe) -> dict[str, Any]:
    """This rank's server, and the ranks at its place in all servers."""
    k, n = params.get("server_size", 0), probe.world_size
    if not k:
        return {}
    inside = make_group([range(first, first + k) for first in range(0, n, k)], probe)
    return {"inside": inside, "across": make_group([range(place, n, k) for place in range(k)], probe)}
