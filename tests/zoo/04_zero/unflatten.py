# Answers to unflatten.

# %% setup
import math

import torch


# %% right: an offset
def unflatten(flat, shapes):
    tensors, offset = [], 0
    for shape in shapes:
        size = math.prod(shape)
        tensors.append(flat[offset : offset + size].reshape(shape))
        offset += size
    return tensors


# %% right: the padding is a last piece, dropped
def unflatten(flat, shapes):
    sizes = [math.prod(shape) for shape in shapes]
    *parts, _ = torch.split(flat, [*sizes, len(flat) - sum(sizes)])
    return [part.view(shape) for part, shape in zip(parts, shapes)]


# %% wrong values: does nothing
# says: must return a value
def unflatten(flat, shapes):
    return None


# %% wrong values: the flat vector itself
# says: must
def unflatten(flat, shapes):
    return [flat]


# %% wrong values: 1-D pieces
# says: shape
def unflatten(flat, shapes):
    sizes = [math.prod(shape) for shape in shapes]
    return list(flat[: sum(sizes)].split(sizes))


# %% wrong values: always from the beginning
# says: must equal
def unflatten(flat, shapes):
    return [flat[: math.prod(shape)].view(shape) for shape in shapes]


# %% wrong values: padding is taken for a tensor
# says: number of tensors
def unflatten(flat, shapes):
    sizes = [math.prod(shape) for shape in shapes]
    parts = flat.split([*sizes, len(flat) - sum(sizes)])
    return [part.view(shape) for part, shape in zip(parts, [*shapes, (-1,)])]


# %% wrong values: a scalar has no element
# says: RuntimeError
def unflatten(flat, shapes):
    sizes = [math.prod(shape) if shape else 0 for shape in shapes]
    return [part.view(shape) for part, shape in zip(flat[: sum(sizes)].split(sizes), shapes)]


# %% wrong values: cuts from the end
# says: must equal
def unflatten(flat, shapes):
    sizes = [math.prod(shape) for shape in shapes]
    parts = flat[len(flat) - sum(sizes) :].split(sizes)
    return [part.view(shape) for part, shape in zip(parts, shapes)]


# %% wrong views: copies
# says: are copies
def unflatten(flat, shapes):
    sizes = [math.prod(shape) for shape in shapes]
    return [part.view(shape).clone() for part, shape in zip(flat[: sum(sizes)].split(sizes), shapes)]


# %% wrong values: the library's layout
# says: closed here
from course_lib.comm.sharding import FlatLayout as Helper


def unflatten(flat, shapes):
    return Helper(tuple(shapes), 1).unflatten(flat)
