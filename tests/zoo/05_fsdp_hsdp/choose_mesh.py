# Answers to choose_mesh: right ones in other styles, and wrong ones with the part each must lose.
# Longer than 150 lines: each mistake is a rule over all meshes, and most show at few points only.

# %% setup
from course_lib.cost.collectives import collective_cost, collective_time_s


def divisors(n):
    return [k for k in range(1, n + 1) if n % k == 0]


def memory(model, k):
    unit = model["num_params"] / model["num_units"]
    return 16 * model["num_params"] / k + 4 * unit + model["activation_bytes"]


def seconds(model, cluster, n, k):
    size = 2 * model["num_params"] / model["num_units"]
    total = 2 * collective_time_s(cluster, "all_gather", range(k), size)
    total += collective_time_s(cluster, "reduce_scatter", range(k), size)
    total += collective_time_s(cluster, "all_reduce", range(0, n, k), size / k)
    return model["num_units"] * total


def fastest(model, cluster, n, sizes=None, gathers=2, state_bytes=16):
    """A right answer, unless it is told other sizes to try, gathers to count or bytes to hold."""
    unit = model["num_params"] / model["num_units"]

    def took(k):
        saved = (2 - gathers) * collective_time_s(cluster, "all_gather", range(k), 2 * unit)
        return seconds(model, cluster, n, k) - model["num_units"] * saved

    def need(k):
        return memory(model, k) - (16 - state_bytes) * model["num_params"] / k

    found = [k for k in sizes or divisors(n) if need(k) <= cluster.accelerator.memory_bytes]
    best = min(found or [n], key=took)
    return n // best, best


# %% right: sorts tuples
def choose_mesh(model, cluster, world_size):
    room = cluster.accelerator.memory_bytes
    found = [
        (seconds(model, cluster, world_size, k), k) for k in divisors(world_size) if memory(model, k) <= room
    ]
    best = sorted(found)[0][1]
    return world_size // best, best


# %% right: from the largest shard down, ties to the larger, costs as objects
def choose_mesh(model, cluster, world_size):
    best = None
    for k in reversed(divisors(world_size)):
        if memory(model, k) > cluster.accelerator.memory_bytes:
            break
        size = 2 * model["num_params"] / model["num_units"]
        inside = collective_cost(cluster, "all_gather", list(range(k)), size).time_s * 3
        across = collective_cost(cluster, "all_reduce", list(range(0, world_size, k)), size / k).time_s
        if best is None or inside + across < best[0]:
            best = (inside + across, [world_size // k, k])
    return best[1]


# %% wrong values: does nothing
def choose_mesh(model, cluster, world_size):
    return None


# %% wrong values: the axes are swapped and one is missing
# says: two positive ints
def choose_mesh(model, cluster, world_size):
    return cluster.server_size


# %% wrong values: the product is not the world size
# says: must be the world size
def choose_mesh(model, cluster, world_size):
    return world_size, cluster.server_size


# %% wrong values: floats
# says: two positive ints
def choose_mesh(model, cluster, world_size):
    return world_size / cluster.server_size, cluster.server_size


# %% wrong memory, clock: always a server, whatever fits
# says: dp_shard is the server's size at every point
def choose_mesh(model, cluster, world_size):
    k = min(cluster.server_size, world_size)
    return world_size // k, k


# %% wrong clock: always FSDP over the world
# says: FSDP
def choose_mesh(model, cluster, world_size):
    return 1, world_size


# %% wrong clock: the smallest that fits
# says: the smallest that fits at every point
def choose_mesh(model, cluster, world_size):
    k = min(k for k in divisors(world_size) if memory(model, k) <= cluster.accelerator.memory_bytes)
    return world_size // k, k


# %% wrong clock: the smallest that fits and fills a server
# says: fills a server
def choose_mesh(model, cluster, world_size):
    fits = [k for k in divisors(world_size) if memory(model, k) <= cluster.accelerator.memory_bytes]
    k = min([k for k in fits if k >= cluster.server_size] or [fits[-1]])
    return world_size // k, k


# %% wrong memory: the fastest, whether it fits or not
def choose_mesh(model, cluster, world_size):
    k = min(divisors(world_size), key=lambda k: seconds(model, cluster, world_size, k))
    return world_size // k, k


# %% wrong memory: forgets activations
# says: a mesh must fit
def choose_mesh(model, cluster, world_size):
    bare = {**model, "activation_bytes": 0}
    fits = [k for k in divisors(world_size) if memory(bare, k) <= cluster.accelerator.memory_bytes]
    k = min(fits, key=lambda k: seconds(model, cluster, world_size, k))
    return world_size // k, k


# %% wrong clock: the all_reduce carries the whole gradient
def choose_mesh(model, cluster, world_size):
    def wrong(k):
        size = 2 * model["num_params"] / model["num_units"]
        total = 3 * collective_time_s(cluster, "all_gather", range(k), size)
        return total + collective_time_s(cluster, "all_reduce", range(0, world_size, k), size)

    fits = [k for k in divisors(world_size) if memory(model, k) <= cluster.accelerator.memory_bytes]
    k = min(fits, key=wrong)
    return world_size // k, k


# %% wrong clock: replicas are taken for neighbours
def choose_mesh(model, cluster, world_size):
    def wrong(k):
        size = 2 * model["num_params"] / model["num_units"]
        total = 3 * collective_time_s(cluster, "all_gather", range(k), size)
        return total + collective_time_s(cluster, "all_reduce", range(world_size // k), size / k)

    fits = [k for k in divisors(world_size) if memory(model, k) <= cluster.accelerator.memory_bytes]
    k = min(fits, key=wrong)
    return world_size // k, k


# %% wrong clock: powers of two up to 8, hard-coded
def choose_mesh(model, cluster, world_size):
    fits = [k for k in divisors(world_size) if memory(model, k) <= cluster.accelerator.memory_bytes]
    few = [k for k in fits if k <= 8] or fits[:1]
    k = min(few, key=lambda k: seconds(model, cluster, world_size, k))
    return world_size // k, k


# %% wrong values: the check's own cost model, under an alias
# says: is closed here
import course_lib.grading.labs.lab05_fsdp_hsdp._meshes as costs


def choose_mesh(model, cluster, world_size):
    k = min(
        costs.sizes_that_fit(model, cluster, world_size),
        key=lambda k: costs.step_time_s(model, cluster, world_size, k),
    )
    return world_size // k, k


# %% wrong values: the same through getattr
# says: is closed here
import importlib


def choose_mesh(model, cluster, world_size):
    costs = importlib.import_module("course_lib.grading.labs.lab05_fsdp_hsdp." + "_meshes")
    fits = getattr(costs, "sizes_that_fit")(model, cluster, world_size)
    return world_size // fits[0], fits[0]


# %% wrong memory, clock: the axes are swapped
# says: the pair is the other way round
def choose_mesh(model, cluster, world_size):
    return fastest(model, cluster, world_size)[::-1]


# %% wrong clock: one byte a parameter on the wire
# says: 1 byte on the wire
def choose_mesh(model, cluster, world_size):
    thin = {**model, "num_params": model["num_params"] / 2}
    fits = [k for k in divisors(world_size) if memory(model, k) <= cluster.accelerator.memory_bytes]
    k = min(fits, key=lambda k: seconds(thin, cluster, world_size, k))
    return world_size // k, k


# %% wrong clock: four bytes a parameter on the wire
# says: 4 bytes on the wire
def choose_mesh(model, cluster, world_size):
    thick = {**model, "num_params": model["num_params"] * 2}
    fits = [k for k in divisors(world_size) if memory(model, k) <= cluster.accelerator.memory_bytes]
    k = min(fits, key=lambda k: seconds(thick, cluster, world_size, k))
    return world_size // k, k


# %% wrong clock: powers of two only
def choose_mesh(model, cluster, world_size):
    return fastest(model, cluster, world_size, [2**i for i in range(11) if world_size % 2**i == 0])


# %% wrong clock: inside a server or all ranks, nothing between
def choose_mesh(model, cluster, world_size):
    sizes = {min(cluster.server_size, world_size), world_size, 1}
    return fastest(model, cluster, world_size, [k for k in sorted(sizes) if world_size % k == 0])


# %% wrong clock: one gather a step, as if nothing were freed
def choose_mesh(model, cluster, world_size):
    return fastest(model, cluster, world_size, gathers=1)


# %% wrong memory: two bytes a parameter, the optimizer forgotten
def choose_mesh(model, cluster, world_size):
    return fastest(model, cluster, world_size, state_bytes=2)


# %% wrong values: the ratio is a float
def choose_mesh(model, cluster, world_size):
    replicate, shard = fastest(model, cluster, world_size)
    return world_size / shard, shard


# %% right: a table of all meshes, the least by numpy
import numpy as np


def choose_mesh(model, cluster, world_size):
    divisors = np.array([k for k in range(1, world_size + 1) if not world_size % k])
    unit = model["num_params"] / model["num_units"]
    need = 16 * model["num_params"] / divisors + 4 * unit + model["activation_bytes"]
    times = np.array([seconds(model, cluster, world_size, int(k)) for k in divisors])
    times[need > cluster.accelerator.memory_bytes] = np.inf
    k = int(divisors[np.argmin(times)])
    return [world_size // k, k]


# %% right: recursion from pure replication down
def choose_mesh(model, cluster, world_size):
    def better(k, best):
        if k > world_size:
            return best
        if world_size % k == 0 and memory(model, k) <= cluster.accelerator.memory_bytes:
            took = seconds(model, cluster, world_size, k)
            best = min(best, (took, k))
        return better(k + 1, best)

    _, shard = better(1, (float("inf"), world_size))
    return world_size // shard, shard


# %% wrong memory: forgets the whole units
# says: the whole units are left out of the memory
def choose_mesh(model, cluster, world_size):
    bare = {**model, "num_units": float("inf")}
    fits = [k for k in divisors(world_size) if memory(bare, k) <= cluster.accelerator.memory_bytes]
    k = min(fits, key=lambda k: seconds(model, cluster, world_size, k))
    return world_size // k, k


# %% wrong clock: stops at a local minimum
# says: stops at the first rise in time
def choose_mesh(model, cluster, world_size):
    best, limit = None, float("inf")
    for k in divisors(world_size):
        if memory(model, k) > cluster.accelerator.memory_bytes:
            continue
        took = seconds(model, cluster, world_size, k)
        if took > limit:
            break
        best, limit = (world_size // k, k), took
    return best


# %% wrong clock: one all_reduce for all units together, whose latency counts once
# says: one all_reduce is taken for all
def choose_mesh(model, cluster, world_size):
    P, L = model["num_params"], model["num_units"]
    times = {}
    for k in range(1, world_size + 1):
        if world_size % k == 0 and (
            16 * P / k + 4 * P / L + model["activation_bytes"] <= cluster.accelerator.memory_bytes
        ):
            times[k] = L * (
                2 * collective_time_s(cluster, "all_gather", range(k), 2 * P / L)
                + collective_time_s(cluster, "reduce_scatter", range(k), 2 * P / L)
            ) + collective_time_s(cluster, "all_reduce", range(0, world_size, k), 2 * P / k)
    k = min(times, key=times.get)
    return world_size // k, k


# %% wrong memory: counts whole units only where units are gathered
# says: whole units are left out of the memory where nothing is sharded
def choose_mesh(model, cluster, world_size):
    P, L = model["num_params"], model["num_units"]
    best = None
    for k in range(1, world_size + 1):
        if world_size % k:
            continue
        memory = 16 * P / k + model["activation_bytes"]
        if k > 1:
            memory += 4 * P / L
        if memory > cluster.accelerator.memory_bytes:
            continue
        time = L * (
            2 * collective_time_s(cluster, "all_gather", range(k), 2 * P / L)
            + collective_time_s(cluster, "reduce_scatter", range(k), 2 * P / L)
            + collective_time_s(cluster, "all_reduce", range(0, world_size, k), 2 * P / L / k)
        )
        if best is None or time < best[0]:
            best = (time, k)
    return world_size // best[1], best[1]


# %% wrong clock: powers of two and the world size only
# says: no mesh that fits may take less time
def choose_mesh(model, cluster, world_size):
    P, L = model["num_params"], model["num_units"]
    best = None
    candidates = [2**i for i in range(world_size.bit_length()) if world_size % 2**i == 0]
    if world_size not in candidates:
        candidates.append(world_size)
    for k in candidates:
        if 16 * P / k + 4 * P / L + model["activation_bytes"] > cluster.accelerator.memory_bytes:
            continue
        time = L * (
            2 * collective_time_s(cluster, "all_gather", range(k), 2 * P / L)
            + collective_time_s(cluster, "reduce_scatter", range(k), 2 * P / L)
            + collective_time_s(cluster, "all_reduce", range(0, world_size, k), 2 * P / L / k)
        )
        if best is None or time < best[0]:
            best = (time, k)
    return world_size // best[1], best[1]


# %% wrong clock: one collective of the whole model instead of one a unit
# says: latency is paid once
def choose_mesh(model, cluster, world_size):
    P, L = model["num_params"], model["num_units"]
    best = None
    for k in range(1, world_size + 1):
        if world_size % k:
            continue
        if 16 * P / k + 4 * P / L + model["activation_bytes"] > cluster.accelerator.memory_bytes:
            continue
        time = (
            2 * collective_time_s(cluster, "all_gather", range(k), 2 * P)
            + collective_time_s(cluster, "reduce_scatter", range(k), 2 * P)
            + collective_time_s(cluster, "all_reduce", range(0, world_size, k), 2 * P / k)
        )
        if best is None or time < best[0]:
            best = (time, k)
    return world_size // best[1], best[1]
