"""Run `rank_hello` in a rank, twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from course_lib.grading.probe import Probe

_INTS = (int, *(np.dtype(code).type for code in np.typecodes["AllInteger"]))


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Hand the rank its secrets, return what it says to each, and the types of that."""
    del params, probe
    out: dict[str, Any] = {}
    for name, greeting in (("secret", "greeting"), ("second secret", "greeting of the second call")):
        said = impl(int(inputs[name]))
        out |= {greeting: said, f"types of the {greeting}": _types(said)}
    return out


def _types(said: Any) -> list[str]:
    return [_type(item) for item in said] if isinstance(said, list | tuple) else [type(said).__name__]


def _type(item: Any) -> str:
    """numpy's ints count as ints, neither True nor a class of the student's own does."""
    name = type(item).__name__
    return "int" if type(item) in _INTS else "another int" if name == "int" else name
