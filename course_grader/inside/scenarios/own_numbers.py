"""Call an answer twice on numbers of this rank, and read the numbers that it returns.

inputs[name][i] is the argument of call i. Options: arguments (names of inputs), returns (names of the
results), whole (arguments are ints, and so must results be; else arguments are tensors, copies that
collectives may write into, and results are numbers or tensors of one element). Marks: "call 0", "call 1",
"ends".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from course_grader.exercise import GateFailed
from course_grader.inside.probe import Probe
from course_grader.inside.scenarios.on_ranks import results_of
from course_grader.why import Why

CALLS = ("", " of the second call")
_INTS = (int, *(np.dtype(code).type for code in np.typecodes["AllInteger"]))


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Return the results of both calls, and the type of each."""
    options, out = params["options"], dict[str, Any]()
    for call, words in enumerate(CALLS):
        probe.mark(f"call {call}")
        given = [inputs[name][call] for name in options["arguments"]]
        said = impl(*([int(x) for x in given] if options.get("whole") else [x.clone() for x in given]))
        results = results_of(said, options["returns"])
        out["types" + words] = {name: _type(value) for name, value in results.items()}
        read = _whole if options.get("whole") else _number
        out |= {name + words: read(name, value) for name, value in results.items()}
    probe.mark("ends")
    return out


def _number(name: str, value: Any) -> Any:
    """A number; a tensor of one element counts as one."""
    del name
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def _whole(name: str, value: Any) -> Any:
    if isinstance(value, Tensor):
        why = Why(f"`{name}` must be an int", "got a tensor", "Take its number with .item().")
        raise GateFailed("values", why)
    return value


def _type(value: Any) -> str:
    """numpy's ints count as ints, neither True nor a class of the student's own does."""
    name = type(value).__name__
    return "int" if type(value) in _INTS else "another int" if name == "int" else name
