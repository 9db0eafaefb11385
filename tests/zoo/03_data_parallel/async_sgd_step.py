# Answers to async_sgd_step: right ones in other styles, and wrong ones with the part each must lose.

# %% setup
from collections import defaultdict

import torch


# %% right: gradients computed when the weights are read, as a real worker does
def async_sgd_step(weights, gradient, arrivals, lr):
    version, current, path, staleness = 0, weights, [weights], []
    pending = {worker: (gradient(worker, weights), 0) for worker in set(arrivals)}
    for worker in arrivals:
        arrived, read_at = pending.pop(worker)
        staleness.append(version - read_at)
        current = current - lr * arrived
        version += 1
        path.append(current)
        pending[worker] = (gradient(worker, current), version)
    return torch.stack(path), staleness


# %% right: in place, with clones, staleness as a tensor
def async_sgd_step(weights, gradient, arrivals, lr):
    server = weights.clone()
    copies = defaultdict(lambda: weights.clone())
    path = torch.empty(len(arrivals) + 1, *weights.shape, dtype=weights.dtype)
    path[0] = server
    for i, worker in enumerate(arrivals):
        server.sub_(gradient(worker, copies[worker]), alpha=lr)
        copies[worker] = server.clone()
        path[i + 1] = server
    staleness = torch.zeros(len(arrivals), dtype=torch.int64)
    for i, worker in enumerate(arrivals):
        earlier = [j for j in range(i) if arrivals[j] == worker]
        staleness[i] = i - (earlier[-1] + 1 if earlier else 0)
    return path, staleness


# %% right: the path is the record, workers remember an index into it
def async_sgd_step(weights, gradient, arrivals, lr):
    path, read, staleness = [weights.clone()], {}, []
    for worker in arrivals:
        at = read.get(worker, 0)
        staleness += [len(path) - 1 - at]
        path += [path[-1] - lr * gradient(worker, path[at])]
        read[worker] = len(path) - 1
    return torch.stack(path), staleness


# %% wrong values: does nothing
# says: path
# from: the path is the record, workers remember an index into it
# change: path += [path[-1] - lr * gradient(worker, path[at])] -> path += [weights]
# %% wrong values: synchronous in disguise, always the newest weights
# says: only has what it read last
# from: the path is the record, workers remember an index into it
# change: gradient(worker, path[at]) -> gradient(worker, path[-1])
# %% wrong values: workers never read again
# says: workers never read again
# from: the path is the record, workers remember an index into it
# change: read[worker] = len(path) - 1 -> pass
# %% wrong values: reads before its own update
# says: it reads after
# from: the path is the record, workers remember an index into it
# change: read[worker] = len(path) - 1 -> read[worker] = len(path) - 2
# %% wrong values: a worker first reads when it first arrives
# says: first reads when it first arrives
# from: the path is the record, workers remember an index into it
# change: read.get(worker, 0) -> read.get(worker, len(path) - 1)
# %% wrong values: lr divided by the number of workers
# says: divided by the number of workers
# from: the path is the record, workers remember an index into it
# change: - lr * -> - lr / len(set(arrivals)) *
# %% wrong values: goes up the gradient
# says: the signs of the steps are turned
# from: the path is the record, workers remember an index into it
# change: - lr * -> + lr *
# %% wrong values: float32 on the way
# says: dtype float64
# from: the path is the record, workers remember an index into it
# change: torch.stack(path) -> torch.stack(path).float()
# %% wrong values: the path holds one tensor many times
# says: store copies
# from: the path is the record, workers remember an index into it
# change: torch.stack(path) -> torch.stack([path[-1]] * len(path))
# %% wrong values: changes the initial weights
# says: must stay as it was
# from: the path is the record, workers remember an index into it
# change: return -> weights.copy_(path[-1]); return
# %% wrong values: workers keep their weights from call to call
def async_sgd_step(weights, gradient, arrivals, lr, copies={}):
    path, staleness, read_at = [weights], [], {}
    for updates, worker in enumerate(arrivals):
        mine = copies.get(worker, weights)
        staleness.append(updates - read_at.get(worker, 0))
        path.append(path[-1] - lr * gradient(worker, mine))
        copies[worker], read_at[worker] = path[-1], updates + 1
    return torch.stack(path), staleness


# %% wrong staleness: counts its own update
# says: one too large
# from: the path is the record, workers remember an index into it
# change: [len(path) - 1 - at] -> [len(path) - at]
# %% wrong staleness: counts from the start
# says: since this worker read
# from: the path is the record, workers remember an index into it
# change: [len(path) - 1 - at] -> [len(path) - 1]
# %% wrong staleness: counts the worker's own updates
# from: the path is the record, workers remember an index into it
# change: [len(path) - 1 - at] -> [arrivals[: len(path) - 1].count(worker)]
# %% wrong staleness: always 0
# says: did you count the updates of the other workers
# from: the path is the record, workers remember an index into it
# change: [len(path) - 1 - at] -> [0]
