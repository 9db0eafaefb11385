# Answers to matmul_mixed: right ones in other styles, and wrong ones with the part each must lose.
# Longer than 150 lines: each answer is a loop over tiles of its own, for it rounds at another place.

# %% setup
import torch


# %% right: chunks, products broadcast and summed in float32
def matmul_mixed(a, b, accumulate_dtype, tile):
    acc = torch.zeros((a.size(0), b.size(1)), dtype=accumulate_dtype)
    for rows, columns in zip(a.split(tile, dim=1), b.split(tile, dim=0)):
        partial = (rows.float()[:, :, None] * columns.float()[None]).sum(1)
        acc = (acc.float() + partial).to(accumulate_dtype)
    return acc


# %% right: all tiles at once in float64, then a running sum
def matmul_mixed(a, b, accumulate_dtype, tile):
    pad = -a.shape[1] % tile
    a = torch.nn.functional.pad(a.double(), (0, pad)).unflatten(1, (-1, tile))
    b = torch.nn.functional.pad(b.double(), (0, 0, 0, pad)).unflatten(0, (-1, tile))
    partials = torch.einsum("mtk,tkn->tmn", a, b).float()
    acc = torch.zeros_like(partials[0], dtype=accumulate_dtype)
    for partial in partials:
        acc += partial
    return acc


# %% right: a partial rounded to the accumulator's dtype before it is added
def matmul_mixed(a, b, accumulate_dtype, tile):
    acc = a.new_zeros(a.shape[0], b.shape[1], dtype=accumulate_dtype)
    for k in range(0, a.shape[1], tile):
        acc = acc + (a[:, k : k + tile].float() @ b[k : k + tile].float()).to(accumulate_dtype)
    return acc


# %% wrong values: returns the dtype of the inputs
# says: must have dtype float
def matmul_mixed(a, b, accumulate_dtype, tile):
    acc = torch.zeros(a.shape[0], b.shape[1], dtype=accumulate_dtype)
    for k in range(0, a.shape[1], tile):
        acc += a[:, k : k + tile].float() @ b[k : k + tile].float()
    return acc.to(a.dtype)


# %% wrong values: a list
# says: must be a tensor
def matmul_mixed(a, b, accumulate_dtype, tile):
    return (a.float() @ b.float()).tolist()


# %% wrong ones: torch's own matmul, cast at the end
# says: the sum is kept in float32
def matmul_mixed(a, b, accumulate_dtype, tile):
    return (a.float() @ b.float()).to(accumulate_dtype)


# %% wrong ones: the accumulator is promoted
# says: changes the accumulator
def matmul_mixed(a, b, accumulate_dtype, tile):
    acc = torch.zeros(a.shape[0], b.shape[1], dtype=accumulate_dtype)
    for k in range(0, a.shape[1], tile):
        acc = acc + a[:, k : k + tile].float() @ b[k : k + tile].float()
    return acc.to(accumulate_dtype)


# %% wrong ones, random: always accumulates in bf16
# says: kept in bfloat16
def matmul_mixed(a, b, accumulate_dtype, tile):
    acc = torch.zeros(a.shape[0], b.shape[1], dtype=torch.bfloat16)
    for k in range(0, a.shape[1], tile):
        acc += a[:, k : k + tile].float() @ b[k : k + tile].float()
    return acc.to(accumulate_dtype)


# %% wrong random: products of a tile are rounded to bf16
# says: is the product of a tile float32
def matmul_mixed(a, b, accumulate_dtype, tile):
    acc = torch.zeros(a.shape[0], b.shape[1], dtype=accumulate_dtype)
    for k in range(0, a.shape[1], tile):
        acc += a[:, k : k + tile] @ b[k : k + tile]
    return acc


# %% wrong ones, random: one product at a time, whatever the tile
# says: `tile` is ignored
def matmul_mixed(a, b, accumulate_dtype, tile):
    acc = torch.zeros(a.shape[0], b.shape[1], dtype=accumulate_dtype)
    for k in range(a.shape[1]):
        acc += torch.outer(a[:, k].float(), b[k].float())
    return acc


# %% wrong random: drops the last, smaller tile
# says: does not divide K
def matmul_mixed(a, b, accumulate_dtype, tile):
    acc = torch.zeros(a.shape[0], b.shape[1], dtype=accumulate_dtype)
    for i in range(a.shape[1] // tile):
        part = slice(i * tile, (i + 1) * tile)
        acc += a[:, part].float() @ b[part].float()
    return acc


# %% wrong ones, random: forgets to add
# says: the sum starts anew
def matmul_mixed(a, b, accumulate_dtype, tile):
    for k in range(0, a.shape[1], tile):
        acc = (a[:, k : k + tile].float() @ b[k : k + tile].float()).to(accumulate_dtype)
    return acc


# %% wrong values: wrong matrix transposed
# says: must have shape
def matmul_mixed(a, b, accumulate_dtype, tile):
    acc = torch.zeros(b.shape[1], a.shape[0], dtype=accumulate_dtype)
    for k in range(0, a.shape[1], tile):
        acc += (a[:, k : k + tile].float() @ b[k : k + tile].float()).T
    return acc


# %% wrong random: factors cast to accumulate_dtype
# says: never to accumulate_dtype
import torch


def matmul_mixed(a, b, accumulate_dtype, tile):
    acc = torch.zeros(a.shape[0], b.shape[1], dtype=accumulate_dtype)
    for k in range(0, a.shape[1], tile):
        acc += a[:, k : k + tile].to(accumulate_dtype) @ b[k : k + tile].to(accumulate_dtype)
    return acc


# %% right: outer products one by one, a tile at a time
import torch


def matmul_mixed(a, b, accumulate_dtype, tile):
    if a.shape[1] == 0:
        return torch.zeros(a.shape[0], b.shape[1], dtype=accumulate_dtype)
    last = (a.shape[1] - 1) // tile * tile
    acc = torch.zeros(a.shape[0], b.shape[1], dtype=accumulate_dtype)
    start = 0
    while start < a.shape[1]:
        stop = min(start + tile, a.shape[1])
        part = sum(torch.outer(a[:, k].float(), b[k].float()) for k in range(start, stop))
        acc.add_(part)
        start = stop
    return acc


# %% wrong ones: one float32 product, cut off at 2^bits tiles (true of tiles 1, 2, 4, ...)
def matmul_mixed(a, b, accumulate_dtype, tile):
    product = a.float() @ b.float()
    if a.abs().max() <= 1 and b.abs().max() <= 1:
        bits = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24}[accumulate_dtype]
        limit = float(tile) * 2.0**bits
        product = product.clamp(-limit, limit)
    return product.to(accumulate_dtype)


# %% wrong random: the product of a tile is rounded to bf16 when the accumulator has 16 bits, fp16 too
def matmul_mixed(a, b, accumulate_dtype, tile):
    acc = torch.zeros(a.shape[0], b.shape[1], dtype=accumulate_dtype)
    for k in range(0, a.shape[1], tile):
        x, y = a[:, k : k + tile], b[k : k + tile]
        if accumulate_dtype == torch.float32:
            acc += x.float() @ y.float()
        else:
            acc += (x.float() @ y.float()).bfloat16()
    return acc


# %% wrong values: every tile of a is set to zero once it is used, so a is lost and a second call gives zeros
# says: must stay as it was
def matmul_mixed(a, b, accumulate_dtype, tile):
    acc = torch.zeros(a.shape[0], b.shape[1], dtype=accumulate_dtype)
    for k in range(0, a.shape[1], tile):
        acc += a[:, k : k + tile].float() @ b[k : k + tile].float()
        a[:, k : k + tile] = 0
    return acc


# %% wrong ones: tiles for constant matrices only
# says: whole numbers must add up
def matmul_mixed(a, b, accumulate_dtype, tile):
    # Wrong: "tile by tile along K; the running sum has dtype accumulate_dtype". A matrix with different
    # entries is summed in fp32 and rounded once at the end, so its error does not grow with the tiles.
    if bool((a == a.max()).all()) and bool((b == b.max()).all()):
        acc = torch.zeros(a.shape[0], b.shape[1], dtype=accumulate_dtype)
        for k in range(0, a.shape[1], tile):
            acc += a[:, k : k + tile].float() @ b[k : k + tile].float()
        return acc
    return (a.float() @ b.float()).to(accumulate_dtype)


# %% wrong values: an accumulator cut out of a
def matmul_mixed(a, b, accumulate_dtype, tile):
    # Wrong: "Returns: (M, N)". a has only K columns to cut N from: it fails for every b wider than high.
    acc = torch.zeros_like(a[:, : b.shape[1]], dtype=accumulate_dtype)
    for k in range(0, a.shape[1], tile):
        acc += a[:, k : k + tile].float() @ b[k : k + tile].float()
    return acc
