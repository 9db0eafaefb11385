# Answers to zero_bytes.


# %% right: a list of lines and the first stage that divides each
def zero_bytes(num_params, world_size, stage, optimizer_bytes):
    bill = [(2, 3), (2, 2), (optimizer_bytes, 1)]
    return sum(num_params * size / (world_size if stage >= first else 1) for size, first in bill)


# %% right: one formula a stage
def zero_bytes(num_params, world_size, stage, optimizer_bytes):
    k, n = optimizer_bytes, world_size
    per_param = {0: 4 + k, 1: 4 + k / n, 2: 2 + (2 + k) / n, 3: (4 + k) / n}
    return per_param[stage] * num_params


# %% wrong stage_1, stage_2, stage_3: nothing is divided
# says: nothing is divided
def zero_bytes(num_params, world_size, stage, optimizer_bytes):
    return num_params * (4 + optimizer_bytes)


# %% wrong stage_0, stage_1, stage_2: everything is divided at every stage
# says: everything is divided
def zero_bytes(num_params, world_size, stage, optimizer_bytes):
    return num_params * (4 + optimizer_bytes) / world_size


# %% wrong stage_0, stage_1, stage_2, stage_3: parameters and gradients in float32
# says: mixed precision keeps them in 2
def zero_bytes(num_params, world_size, stage, optimizer_bytes):
    n, k = world_size, optimizer_bytes
    share = [n if stage >= first else 1 for first in (3, 2, 1)]
    return num_params * (4 / share[0] + 4 / share[1] + k / share[2])


# %% wrong stage_0, stage_1, stage_2, stage_3: in GB
# says: in GB
def zero_bytes(num_params, world_size, stage, optimizer_bytes):
    n, k = world_size, optimizer_bytes
    share = [n if stage >= first else 1 for first in (3, 2, 1)]
    return num_params * (2 / share[0] + 2 / share[1] + k / share[2]) / 1e9


# %% wrong stage_0, stage_1, stage_2, stage_3: optimizer_bytes is not read
# says: 12 taken
def zero_bytes(num_params, world_size, stage, optimizer_bytes):
    n = world_size
    share = [n if stage >= first else 1 for first in (3, 2, 1)]
    return num_params * (2 / share[0] + 2 / share[1] + 12 / share[2])


# %% wrong stage_3: stage 3 is that of stage 2
# says: one stage less
def zero_bytes(num_params, world_size, stage, optimizer_bytes):
    rest = (2 + optimizer_bytes) / world_size
    per_param = [4 + optimizer_bytes, 4 + optimizer_bytes / world_size, 2 + rest, 2 + rest]
    return num_params * per_param[stage]


# %% wrong stage_2: gradients are forgotten once they are sharded
# says: gradients are left out
def zero_bytes(num_params, world_size, stage, optimizer_bytes):
    n, k = world_size, optimizer_bytes
    return num_params * [4 + k, 4 + k / n, 2 + k / n, (4 + k) / n][stage]


# %% wrong stage_0, stage_1, stage_2, stage_3: a text
# says: must be a number
def zero_bytes(num_params, world_size, stage, optimizer_bytes):
    return "120 GB"


# %% right: numpy, one row of the table a stage
import numpy as np


def zero_bytes(num_params, world_size, stage, optimizer_bytes):
    sharded = np.tri(4, 3, -1, dtype=bool)[stage][[0, 1, 2]]
    bill = np.array([optimizer_bytes, 2, 2]) / np.where(sharded, world_size, 1)
    return bill.sum() * num_params


# %% right: whole bytes
def zero_bytes(num_params, world_size, stage, optimizer_bytes):
    def share(size, first):
        return -(-size * num_params // (world_size if stage >= first else 1))

    return share(2, 3) + share(2, 2) + share(optimizer_bytes, 1)


# %% wrong stage_1, stage_2, stage_3: divides by the other ranks
def zero_bytes(num_params, world_size, stage, optimizer_bytes):
    n, k = world_size - 1, optimizer_bytes
    return num_params * [4 + k, 4 + k / n, 2 + (2 + k) / n, (4 + k) / n][stage]


# %% wrong stage_0, stage_1, stage_2, stage_3: optimizer_bytes is taken for all 16
# says: parameters and gradients are left out
def zero_bytes(num_params, world_size, stage, optimizer_bytes):
    n, k = world_size, optimizer_bytes - 4
    return num_params * [4 + k, 4 + k / n, 2 + (2 + k) / n, (4 + k) / n][stage]


# %% wrong stage_1, stage_2, stage_3: only the two moments are sharded
# says: master weights
def zero_bytes(num_params, world_size, stage, optimizer_bytes):
    n, rest = world_size, optimizer_bytes - 4
    return num_params * [8 + rest, 8 + rest / n, 6 + (2 + rest) / n, 4 + (4 + rest) / n][stage]


# %% wrong stage_0, stage_1, stage_2, stage_3: GiB
def zero_bytes(num_params, world_size, stage, optimizer_bytes):
    n, k = world_size, optimizer_bytes
    return num_params * [4 + k, 4 + k / n, 2 + (2 + k) / n, (4 + k) / n][stage] / 2**30


# %% wrong stage_0, stage_1, stage_2, stage_3: the paper's row by heart
def zero_bytes(num_params, world_size, stage, optimizer_bytes):
    return [120e9, 31.4e9, 16.6e9, 1.875e9][stage]


# %% wrong stage_0, stage_1, stage_2, stage_3: the optimizer never has more than Adam's 12 bytes
def zero_bytes(num_params, world_size, stage, optimizer_bytes):
    k = min(optimizer_bytes, 12)
    lines = [k, 2, 2]  # in the order in which the stages shard them
    return sum(num_params * size / (world_size if stage > i else 1) for i, size in enumerate(lines))


# %% wrong stage_0, stage_1, stage_2, stage_3: a K of 0 is taken for Adam's 12
def zero_bytes(num_params, world_size, stage, optimizer_bytes):
    kept = optimizer_bytes or 12
    lines = [2, 2, kept]
    for index in range(stage):
        lines[2 - index] /= world_size
    return num_params * sum(lines)


# %% wrong stage_0, stage_1, stage_2, stage_3: remembers bytes a parameter by ranks and stage
# says: the result must be
def zero_bytes(num_params, world_size, stage, optimizer_bytes, known={}):
    key = (world_size, stage)
    if key not in known:
        params = 2 / world_size if stage >= 3 else 2
        grads = 2 / world_size if stage >= 2 else 2
        state = optimizer_bytes / world_size if stage >= 1 else optimizer_bytes
        known[key] = params + grads + state
    return num_params * known[key]
