# Answers to overlap_break_even: right ones in other styles, and wrong ones with the part each must lose.

# %% setup
import math


def right(p):
    n, k = p["world_size"], p["num_buckets"]
    wire_bytes = 2 * (n - 1) / n * p["num_params"] * p["bytes_per_param"]
    c = wire_bytes / p["link_bytes_per_s"]
    one_s = p["flops_per_sample"] / p["flops_per_s"]
    f, b = one_s * p["batch"] / 3, one_s * p["batch"] * 2 / 3
    return {
        "batch": max(1, math.ceil(1.5 * c / one_s)),
        "bytes_per_s": wire_bytes / b,
        "speedup": n * (f + b) / (f + max(b + c / k, b / k + c)),
    }


# %% right: plays the events instead of a formula, searches the batch
def overlap_break_even(
    num_params,
    flops_per_sample,
    flops_per_s,
    link_bytes_per_s,
    world_size,
    batch,
    num_buckets,
    bytes_per_param,
):
    def step(batch, link):
        compute = batch * flops_per_sample / flops_per_s
        bucket = 2 * (world_size - 1) * num_params * bytes_per_param / num_buckets / world_size / link
        ready = [compute / 3 + 2 / 3 * compute * (i + 1) / num_buckets for i in range(num_buckets)]
        free = 0.0
        for t in ready:
            start = max(free, t)
            free = start + bucket
        return compute, free, start <= ready[-1] * (1 + 1e-12)

    smallest = next(b for b in range(1, 10**6) if step(b, link_bytes_per_s)[2])
    low, high = 1e-30, 1e30
    for _ in range(400):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if step(batch, middle)[2] else (middle, high)
    compute, end, _ = step(batch, link_bytes_per_s)
    return {
        "batch": smallest,
        "bytes_per_s": high if world_size > 1 else 0,
        "speedup": world_size * compute / end,
    }


# %% right: keyword dictionary and numpy numbers, batch as a float
def overlap_break_even(**p):
    import numpy as np

    answer = right(p)
    answer["batch"] = np.ceil(answer["batch"])
    answer["speedup"] = np.float64(answer["speedup"])
    return answer


# %% wrong values: not written
# says: not written yet
def overlap_break_even(
    num_params,
    flops_per_sample,
    flops_per_s,
    link_bytes_per_s,
    world_size,
    batch,
    num_buckets,
    bytes_per_param,
):
    raise NotImplementedError("exercise overlap_break_even")


# %% wrong values: a tuple
# says: must return a dict
def overlap_break_even(**p):
    return tuple(right(p).values())


# %% wrong batch, bytes_per_s: forgot 2(n-1)/n
# says: the factor 2(n-1)/n of a ring is missing
def overlap_break_even(**p):
    wrong = right({**p, "num_params": p["num_params"] * p["world_size"] / (2 * (p["world_size"] - 1) or 1)})
    return {**wrong, "speedup": right(p)["speedup"]}


# %% wrong batch, bytes_per_s, speedup: right at world size 2 only
# says: (n-1)/n
def overlap_break_even(**p):
    n = p["world_size"]
    return right({**p, "num_params": p["num_params"] * n / (2 * (n - 1) or 1) if n > 2 else p["num_params"]})


# %% wrong batch, bytes_per_s, speedup: always four bytes a parameter
# says: you always take 4
def overlap_break_even(**p):
    return right({**p, "bytes_per_param": 4})


# %% wrong batch, bytes_per_s: hides behind the whole step
# says: gradients exist only in backward
def overlap_break_even(**p):
    answer = right(p)
    wire_s = 2 * (p["world_size"] - 1) / p["world_size"] * p["num_params"] * p["bytes_per_param"]
    one_s = p["flops_per_sample"] / p["flops_per_s"]
    answer["batch"] = max(1, math.ceil(wire_s / p["link_bytes_per_s"] / one_s))
    answer["bytes_per_s"] = wire_s / one_s / p["batch"]
    return answer


# %% wrong batch: rounds down
# says: you round down
def overlap_break_even(**p):
    answer = right(p)
    return {**answer, "batch": max(1, answer["batch"] - 1)}


# %% wrong batch: not rounded
# says: whole number
def overlap_break_even(**p):
    exact = right(p)["bytes_per_s"] / p["link_bytes_per_s"] * p["batch"]
    return {**right(p), "batch": max(1.0, exact)}


# %% wrong batch: of all ranks together
# says: batch of all ranks together
def overlap_break_even(**p):
    return {**right(p), "batch": right(p)["batch"] * p["world_size"]}


# %% wrong bytes_per_s: in bits
# says: bytes are asked
def overlap_break_even(**p):
    return {**right(p), "bytes_per_s": 8 * right(p)["bytes_per_s"]}


# %% wrong speedup: the efficiency
# says: you give the efficiency
def overlap_break_even(**p):
    return {**right(p), "speedup": right(p)["speedup"] / p["world_size"]}


# %% wrong speedup: nothing overlaps
# says: nothing overlaps
def overlap_break_even(**p):
    n = p["world_size"]
    c = 2 * (n - 1) / n * p["num_params"] * p["bytes_per_param"] / p["link_bytes_per_s"]
    one_s = p["batch"] * p["flops_per_sample"] / p["flops_per_s"]
    return {**right(p), "speedup": n * one_s / (one_s + c)}


# %% wrong speedup: forgets that the last bucket is never hidden
# says: the last bucket is forgotten
def overlap_break_even(**p):
    n = p["world_size"]
    c = 2 * (n - 1) / n * p["num_params"] * p["bytes_per_param"] / p["link_bytes_per_s"]
    one_s = p["batch"] * p["flops_per_sample"] / p["flops_per_s"]
    return {**right(p), "speedup": n * one_s / (one_s / 3 + max(one_s * 2 / 3, c))}


# %% wrong speedup: four GPUs are four times as fast
# says: communication is free
def overlap_break_even(**p):
    return {**right(p), "speedup": p["world_size"]}


# %% wrong speedup: one missing
# says: must be a number
def overlap_break_even(**p):
    answer = right(p)
    del answer["speedup"]
    return answer


# %% wrong batch: tries one batch after the other, and gives up at 1,000
def overlap_break_even(**p):
    answer = right(p)
    return answer | {"batch": min(answer["batch"], 1000)}


# %% wrong batch: rounds to two digits before the ceiling
# says: does not keep up
def overlap_break_even(
    num_params,
    flops_per_sample,
    flops_per_s,
    link_bytes_per_s,
    world_size,
    batch,
    num_buckets,
    bytes_per_param,
):
    wire = 2 * (world_size - 1) / world_size * num_params * bytes_per_param
    comm = wire / link_bytes_per_s
    sample_s = flops_per_sample / flops_per_s
    forward, backward = batch * sample_s / 3, batch * sample_s * 2 / 3
    end = max(forward + backward + comm / num_buckets, forward + backward / num_buckets + comm)
    return {
        "batch": max(1, math.ceil(round(comm / (sample_s * 2 / 3), 2))),
        "bytes_per_s": wire / backward,
        "speedup": world_size * (forward + backward) / end,
    }
