# Answers to choose_mesh: right ones in other styles, and wrong ones with the part each must lose.

# %% setup
from course_lib.cost.collectives import collective_cost, collective_time_s


def divisors(n):
    return [k for k in range(1, n + 1) if n % k == 0]


def memory(model, k):
    unit = model["num_params"] / model["num_units"]
    return 16 * model["num_params"] / k + 4 * unit + model["activation_bytes"]


def seconds(model, cluster, n, k):
    size = 2 * model["num_params"] / model["num_units"]
    inside = 3 * collective_cost(cluster, "all_gather", list(range(k)), size).time_s
    return inside + collective_time_s(cluster, "all_reduce", range(0, n, k), size / k)


# %% right: from the largest shard down, ties to the larger, costs as objects
def choose_mesh(model, cluster, world_size):
    best = None
    for k in reversed(divisors(world_size)):
        if memory(model, k) > cluster.accelerator.memory_bytes:
            break
        took = seconds(model, cluster, world_size, k)
        if best is None or took < best[0]:
            best = (took, [world_size // k, k])
    return best[1]


# %% right: a table of all meshes, the least by numpy
import numpy as np


def choose_mesh(model, cluster, world_size):
    sizes = np.array(divisors(world_size))
    times = np.array([seconds(model, cluster, world_size, int(k)) for k in sizes])
    times[memory(model, sizes) > cluster.accelerator.memory_bytes] = np.inf
    k = int(sizes[np.argmin(times)])
    return [world_size // k, k]


# %% right: sorts tuples
# change: min(times_s, key=times_s.get) -> sorted((time, k) for k, time in times_s.items())[0][1]
# %% wrong values: the product is not the world size
# says: must be the world size
# change: return world_size // best, best -> return world_size, max(2, best)
# %% wrong values: the ratio is a float
# says: two positive ints
# change: world_size // best -> world_size / best
# %% wrong memory, clock: the axes are swapped
# says: the pair is the other way round
# change: return world_size // best, best -> return best, world_size // best
# %% wrong memory, clock: always a server, whatever fits
# says: dp_shard is the server's size at every point
# change: min(times_s, key=times_s.get) -> min(cluster.server_size, world_size)
# %% wrong clock: always FSDP over the world
# says: FSDP
# change: min(times_s, key=times_s.get) -> world_size
# %% wrong clock: the smallest that fits
# says: the smallest that fits at every point
# change: min(times_s, key=times_s.get) -> min(times_s)
# %% wrong clock: the smallest that fits and fills a server
# says: fills a server
# change: min(times_s, key=times_s.get) -> min([k for k in times_s if k >= cluster.server_size] or [max(times_s)])
# %% wrong clock: powers of two and the world size only
# says: no mesh that fits may take less time
# change: if world_size % k == 0]: -> if world_size % k == 0 and (k & (k - 1) == 0 or k == world_size)]:
# %% wrong clock: inside a server or all ranks, nothing between
# change: if world_size % k == 0]: -> if world_size % k == 0 and k in (1, cluster.server_size, world_size)]:
# %% wrong clock: stops at a local minimum
# says: stops at the first rise in time
# change: min(times_s, key=times_s.get) -> next((k for k, after in zip(times_s, [*times_s][1:]) if times_s[after] > times_s[k]), max(times_s))
# %% wrong memory: the fastest, whether it fits or not
# change: if memory <= cluster.accelerator.memory_bytes: -> if True:
# %% wrong memory: forgets activations
# says: a mesh must fit
# change: + 2 * unit_bytes + model["activation_bytes"] -> + 2 * unit_bytes
# %% wrong memory: forgets the whole units
# says: the whole units are left out of the memory
# change: + 2 * unit_bytes + model["activation_bytes"] -> + model["activation_bytes"]
# %% wrong memory: one whole unit, that of the unit which computes
# says: one whole unit is left out
# change: + 2 * unit_bytes + -> + unit_bytes +
# %% wrong memory: whole units are cut by dp_shard
# says: whole units are divided by dp_shard
# change: + 2 * unit_bytes + -> + 2 * unit_bytes / k +
# %% wrong memory, clock: GPUs of 80 GB by heart
# says: cluster.accelerator.memory_bytes
# change: cluster.accelerator.memory_bytes -> 80e9
# %% wrong memory: counts whole units only where units are gathered
# says: whole units are left out of the memory where nothing is sharded
# change: + 2 * unit_bytes + -> + 2 * unit_bytes * (k > 1) +
# %% wrong memory: two bytes per parameter, the optimizer forgotten
# change: 16 * num_params / k -> 2 * num_params / k
# %% wrong clock: the all_reduce carries the whole gradient
# change: unit_bytes / k) -> unit_bytes)
# %% wrong clock: replicas are taken for neighbours
# change: range(0, world_size, k) -> range(world_size // k)
# %% wrong clock: one byte a parameter on the wire
# says: 1 byte on the wire
# change: , unit_bytes -> , unit_bytes / 2
# %% wrong clock: four bytes per parameter on the wire
# says: 4 bytes on the wire
# change: , unit_bytes -> , 2 * unit_bytes
# %% wrong clock: one gather a step, as if nothing were freed
# change: 2 * gather_s -> gather_s
# %% wrong clock: one all_reduce for all units together, whose latency counts once
# says: one all_reduce is taken for all
# change: replicate, unit_bytes / k) -> replicate, num_units * unit_bytes / k) / num_units
# %% wrong clock: one collective of the whole model instead of one per unit
# says: latency is paid once
# change: , unit_bytes -> , num_units * unit_bytes
# change: num_units * (2 * gather_s -> (2 * gather_s
