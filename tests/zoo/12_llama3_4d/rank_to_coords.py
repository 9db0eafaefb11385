# Answers to rank_to_coords.


# %% right: strides from the fast end
def rank_to_coords(rank, sizes):
    coords, stride = {}, 1
    for axis in reversed(sizes):
        coords[axis] = rank // stride % sizes[axis]
        stride *= sizes[axis]
    return coords


# %% right: counts up all places
def rank_to_coords(rank, sizes):
    from itertools import islice, product

    place = next(islice(product(*(range(size) for size in sizes.values())), rank, None))
    return dict(zip(sizes, place))


# %% wrong coords: the first axis varies fastest
# says: the first axis varies fastest
def rank_to_coords(rank, sizes):
    coords = {}
    for axis, size in sizes.items():
        rank, coords[axis] = divmod(rank, size)
    return coords


# %% wrong coords: does nothing
def rank_to_coords(rank, sizes):
    return {}


# %% wrong coords: right for two axes only
def rank_to_coords(rank, sizes):
    first, last = list(sizes)[0], list(sizes)[-1]
    return {first: rank // sizes[last], last: rank % sizes[last]}


# %% wrong coords: right on rank 0 only
def rank_to_coords(rank, sizes):
    return {axis: 0 for axis in sizes}


# %% wrong coords: the slowest place is not reduced
# from: reference
# change: coords[axis] = divmod(rank, size) -> coords[axis] = divmod(rank, size)[0], rank


# %% wrong values: asks the library
# says: closed
def rank_to_coords(rank, sizes):
    from course_lib.comm import mesh

    return mesh.rank_to_coords(rank, sizes)
