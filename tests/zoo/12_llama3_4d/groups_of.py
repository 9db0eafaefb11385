# Answers to groups_of.


# %% right: numpy
def groups_of(axes, sizes):
    import numpy as np

    names, shape = [name for name, _ in sizes], [size for _, size in sizes]
    grid = np.arange(int(np.prod(shape))).reshape(*shape)
    moved = np.moveaxis(grid, [names.index(a) for a in axes], range(-len(axes), 0))
    return moved.reshape(-1, int(np.prod([dict(sizes)[a] for a in axes]))).tolist()


# %% right: compares every rank with every other
def groups_of(axes, sizes):
    import itertools

    places = list(itertools.product(*(range(n) for _, n in sizes)))
    keep = [i for i, (name, _) in enumerate(sizes) if name not in axes]

    def same(a, b):
        return all(a[i] == b[i] for i in keep)

    groups = []
    for rank, place in enumerate(places):
        if not any(rank in group for group in groups):
            groups.append([other for other, at in enumerate(places) if same(at, place)])
    return groups


# %% wrong groups: neighbours, whatever the axis
# says: neighbours make a group
def groups_of(axes, sizes):
    import math

    size, world = math.prod(n for a, n in sizes if a in axes), math.prod(n for _, n in sizes)
    return [list(range(start, start + size)) for start in range(0, world, size)]


# %% wrong groups: only the first of the axes
# says: only the first
# change: if axis not in axes -> if axis not in axes[:1]
# %% wrong groups: ranks that agree in the axes
# says: agree
# change: if axis not in axes -> if axis in axes
# %% wrong groups: one group of all
def groups_of(axes, sizes):
    import math

    return [list(range(math.prod(n for _, n in sizes)))]


# %% wrong groups: right on a mesh of two axes only
# change: for _, size in sizes) -> for _, size in sizes[-2:])
# %% wrong groups: does nothing
def groups_of(axes, sizes):
    return []


# %% wrong values: asks the library
# says: closed
def groups_of(axes, sizes):
    from course_lib.comm.mesh import lines

    return lines(axes[0], dict(sizes))


# %% wrong groups: axes of one rank have no groups
# change: return list(groups.values()) -> return [group for group in groups.values() if len(group) > 1]
# %% wrong groups: every rank's group, so each group comes as often as it has members
# change: return list(groups.values()) -> return [group for group in groups.values() for _ in group]
# %% wrong groups: dict values instead of a list
# says: list of lists
# change: return list(groups.values()) -> return groups.values()
# %% wrong groups: its rank_to_coords lets the first axis vary fastest
# says: your `rank_to_coords`
# change: coords = rank_to_coords(rank, sizes) -> coords = rank_to_coords(rank, sizes[::-1])
# %% wrong values: rank_to_coords is still a stub
# says: exercise rank_to_coords is not written yet
# change: coords = rank_to_coords(rank, sizes) -> raise NotImplementedError("exercise rank_to_coords")
