"""Where ranks stand on the mesh of a case: arithmetic on params["mesh"], {"dp_shard": 2, "tp": 2}.

The first axis is the slowest, as in `comm.mesh`; written here again, so that no verdict rests on the library.
"""

from __future__ import annotations

from course_grader.types import Case


def sizes_of(case: Case) -> dict[str, int]:
    """Ranks along each axis; one axis "world" where a case names none."""
    return dict(case.params.get("mesh") or {"world": case.world_size})


def place_of(case: Case, rank: int) -> dict[str, int]:
    """A rank's place along each axis."""
    place: dict[str, int] = {}
    for axis, size in reversed(list(sizes_of(case).items())):
        rank, place[axis] = divmod(rank, size)
    return place


def axis_group(case: Case, rank: int, axis: str) -> list[int]:
    """Return the global ranks of the group of `rank` along an axis, in order; without that axis, [rank]."""
    own = place_of(case, rank)
    if axis not in own:
        return [rank]
    own.pop(axis)
    ranks = range(case.world_size)
    return [r for r in ranks if all(place_of(case, r)[other] == at for other, at in own.items())]
