"""Call an answer several times on every rank, with plain keyword arguments; it communicates nothing.

params["calls"] is {name: what differs from the defaults}. The defaults are params["arguments"], with `rank`
and `world_size` of this rank. params["before"] is a call whose result is dropped: it must leave no trace.

Python salts the hash of a string anew in each process. Ranks of a check are forks and share the salt; those
of a real run do not, so here neither.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from torch import Tensor

from course_grader.inside.probe import Probe

_hash = hash


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Return the result of each call, as lists of lists of whole numbers."""
    del inputs
    builtins.hash = lambda value: _salted_hash(value, probe.rank)
    defaults = {"rank": probe.rank, "world_size": probe.world_size, **params["arguments"]}
    plain(impl(**{**defaults, **params["before"]}))
    return {name: plain(impl(**{**defaults, **changes})) for name, changes in params["calls"].items()}


def _salted_hash(value: Any, salt: int) -> int:
    if isinstance(value, str | bytes):
        return _hash((salt, value))
    if isinstance(value, tuple):
        return _hash(tuple(_salted_hash(item, salt) for item in value))
    return _hash(value)


def plain(rows: Any) -> list[list[int]]:
    """Turn tensors, arrays, ranges and generators of whole numbers into lists.

    Raises: TypeError for anything else.
    """
    try:
        return [[int(number) for number in row] for row in rows]
    except (TypeError, ValueError) as error:
        raise TypeError(
            "the answer must return one sequence of whole numbers per step, such as [[4, 0], [2]]; "
            f"got {type(rows).__name__} ({error}). Return a list of lists or of 1-D tensors."
        ) from None
