"""The packing rule of `pack_buckets`, and what slips make of it."""

from course_grader.parts.numbers import Point

Buckets = list[list[int]]


def pack(
    p: Point, forward: bool = False, late: bool = False, early: bool = False, keeps: bool = False
) -> Buckets:
    """The rule; with other arguments, what a slip makes of it."""
    sizes, cap = p["sizes"], p["bucket_bytes"]
    places = range(len(sizes)) if forward else reversed(range(len(sizes)))
    packed: Buckets = []
    used = 0
    for place in places:
        full = used >= cap if late else used + sizes[place] >= cap if early else used + sizes[place] > cap
        if not packed or full:
            packed.append([])
            used = used if keeps else 0
        packed[-1].append(place)
        used += sizes[place]
    return packed
