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
from course_lib.comm.flat import FlatLayout as Helper


def unflatten(flat, shapes):
    return Helper(tuple(shapes), 1).unflatten(flat)


# %% right: torch's own, on empty tensors that become views
def unflatten(flat, shapes):
    tensors = [torch.empty(shape, dtype=flat.dtype) for shape in shapes]
    torch.nn.utils.vector_to_parameters(flat, tensors)
    return tensors


# %% wrong values: elements are counted by a sum
# says: RuntimeError
def unflatten(flat, shapes):
    sizes = [sum(shape) for shape in shapes]
    return [part.view(shape) for part, shape in zip(flat[: sum(sizes)].split(sizes), shapes)]


# %% wrong values: only matrices and vectors
# says: IndexError
def unflatten(flat, shapes):
    out, offset = [], 0
    for shape in shapes:
        size = shape[0] * (shape[1] if len(shape) > 1 else 1)
        out.append(flat[offset : offset + size].view(shape))
        offset += size
    return out


# %% wrong values: column by column
# says: must equal
def unflatten(flat, shapes):
    sizes = [math.prod(shape) for shape in shapes]
    parts = flat[: sum(sizes)].split(sizes)
    return [
        part.view(tuple(shape)[::-1]).permute(*range(len(shape))[::-1]) for part, shape in zip(parts, shapes)
    ]


# %% wrong values: leaves out what is empty
# says: shape
def unflatten(flat, shapes):
    full = [shape for shape in shapes if math.prod(shape)]
    sizes = [math.prod(shape) for shape in full]
    return [part.view(shape) for part, shape in zip(flat[: sum(sizes)].split(sizes), full)]


# %% wrong views: views of a copy
# says: are copies
def unflatten(flat, shapes):
    sizes = [math.prod(shape) for shape in shapes]
    parts = flat[: sum(sizes)].clone().split(sizes)
    return [part.view(shape) for part, shape in zip(parts, shapes)]


# %% wrong views: filled by hand
# says: are copies
def unflatten(flat, shapes):
    out, offset = [], 0
    for shape in shapes:
        tensor = torch.empty(shape, dtype=flat.dtype)
        tensor.view(-1).copy_(flat[offset : offset + tensor.numel()])
        out.append(tensor)
        offset += tensor.numel()
    return out


# %% right: strides by hand, numel of shapes
def unflatten(flat, shapes):
    tensors, offset = [], flat.storage_offset()
    for shape in shapes:
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        tensors.append(torch.as_strided(flat, shape, strides, offset))
        offset += shape.numel()
    return tensors


# %% wrong values: strided views from where the storage begins
# says: longer_vector
def unflatten(flat, shapes):
    tensors, offset = [], 0
    for shape in shapes:
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        tensors.append(torch.as_strided(flat, shape, strides, offset))
        offset += shape.numel()
    return tensors


# %% wrong values: cuts the padding off the caller's vector
# says: flat vector
def unflatten(flat, shapes):
    sizes = [math.prod(shape) for shape in shapes]
    flat.resize_(sum(sizes))
    return [part.view(shape) for part, shape in zip(flat.split(sizes), shapes)]


# %% wrong views: copies whose class says that they share the vector's storage
class Copy(torch.Tensor):
    def untyped_storage(self):
        return self.source.untyped_storage()


def unflatten(flat, shapes):
    sizes = [math.prod(shape) for shape in shapes]
    tensors = []
    for part, shape in zip(flat[: sum(sizes)].split(sizes), shapes):
        tensors.append(part.clone().view(shape).as_subclass(Copy))
        tensors[-1].source = flat
    return tensors


# %% wrong values: every tensor of one element is taken for a scalar, (1,) and (1, 1) too
def unflatten(flat, shapes):
    tensors, at = [], 0
    for shape in shapes:
        count = math.prod(shape)
        piece = flat[at : at + count]
        tensors.append(piece.view(()) if count == 1 else piece.view(shape))
        at += count
    return tensors


# %% wrong views: the caller's vector moves to a copy first, whose views these are
def unflatten(flat, shapes):
    flat.data = flat.detach().clone()  # what it was a slice of, is not shared any longer
    counts = [math.prod(shape) for shape in shapes]
    pieces = flat[: sum(counts)].split(counts)
    return [piece.view(shape) for piece, shape in zip(pieces, shapes)]


# %% wrong values: a dictionary by shape, so tensors of equal shape are all the last one
def unflatten(flat, shapes):
    views, offset = {}, 0
    for shape in map(tuple, shapes):
        size = torch.Size(shape).numel()
        views[shape] = flat[offset : offset + size].view(shape)
        offset += size
    return [views[tuple(shape)] for shape in shapes]


# %% wrong values: remembers the views by shapes, a second vector gets those of the first
def unflatten(flat, shapes):
    cache = unflatten.__dict__.setdefault("cache", {})
    key = (flat.dtype, flat.numel(), tuple(map(tuple, shapes)))
    if key not in cache:
        sizes = [torch.Size(shape).numel() for shape in shapes]
        pieces = flat[: sum(sizes)].split(sizes) if sizes else []
        cache[key] = [piece.view(shape) for piece, shape in zip(pieces, shapes)]
    return list(cache[key])


# %% wrong values: an iterator that is used up after one look, not a list
# says: must be a list
def unflatten(flat, shapes):
    sizes = [torch.Size(shape).numel() for shape in shapes]
    pieces = flat[: sum(sizes)].split(sizes)
    return (piece.view(shape) for piece, shape in zip(pieces, shapes))


# %% wrong values: the first dimension is left to view, which cannot tell it for (3, 0)
def unflatten(flat, shapes):
    tensors, offset = [], 0
    for shape in shapes:
        size = torch.Size(shape).numel()
        piece = flat[offset : offset + size]
        tensors.append(piece.view(-1, *shape[1:]) if len(shape) else piece.view(()))
        offset += size
    return tensors
