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


# %% wrong values: not written
# says: not written yet
def async_sgd_step(weights, gradient, arrivals, lr):
    raise NotImplementedError("exercise async_sgd_step")


# %% wrong values: does nothing
# says: path
def async_sgd_step(weights, gradient, arrivals, lr):
    return weights.expand(len(arrivals) + 1, -1).clone(), [0] * len(arrivals)


# %% wrong values: synchronous in disguise, always the newest weights
# says: only has what it read last
def async_sgd_step(weights, gradient, arrivals, lr):
    path, read, staleness = [weights], {}, []
    for version, worker in enumerate(arrivals):
        staleness.append(version - read.get(worker, 0))
        path.append(path[-1] - lr * gradient(worker, path[-1]))
        read[worker] = version + 1
    return torch.stack(path), staleness


# %% wrong values: workers never read again
# says: workers never read again
def async_sgd_step(weights, gradient, arrivals, lr):
    path, staleness = [weights], []
    for version, worker in enumerate(arrivals):
        path.append(path[-1] - lr * gradient(worker, weights))
        staleness.append(version)
    return torch.stack(path), staleness


# %% wrong values: reads before its own update
# says: it reads after
def async_sgd_step(weights, gradient, arrivals, lr):
    path, read, staleness = [weights], {}, []
    for version, worker in enumerate(arrivals):
        at = read.get(worker, 0)
        staleness.append(version - at)
        read[worker] = version
        path.append(path[-1] - lr * gradient(worker, path[at]))
    return torch.stack(path), staleness


# %% wrong values: copies that are one tensor, changed in place
# says: must stay as it was
def async_sgd_step(weights, gradient, arrivals, lr):
    copies, path, staleness = {}, [weights.clone()], []
    for worker in arrivals:
        weights -= lr * gradient(worker, copies.get(worker, weights))
        copies[worker] = weights
        path.append(weights.clone())
        staleness.append(0)
    return torch.stack(path), staleness


# %% wrong values: the path holds one tensor many times
# says: store copies
def async_sgd_step(weights, gradient, arrivals, lr):
    server, copies, path, staleness = weights.clone(), {}, [], []
    path.append(server)
    for worker in arrivals:
        server -= lr * gradient(worker, copies.get(worker, weights))
        copies[worker] = server.clone()
        path.append(server)
        staleness.append(0)
    return torch.stack(path), staleness


# %% wrong values: float32 on the way
# says: dtype float64
def async_sgd_step(weights, gradient, arrivals, lr):
    path, read, staleness = [weights], {}, []
    for version, worker in enumerate(arrivals):
        at = read.get(worker, 0)
        staleness.append(version - at)
        path.append(path[-1] - lr * gradient(worker, path[at]))
        read[worker] = version + 1
    return torch.stack(path).float(), staleness


# %% wrong values: lr divided by the number of workers
# says: divided by the number of workers
def async_sgd_step(weights, gradient, arrivals, lr):
    path, read, staleness = [weights], {}, []
    for version, worker in enumerate(arrivals):
        at = read.get(worker, 0)
        staleness.append(version - at)
        path.append(path[-1] - lr / len(set(arrivals)) * gradient(worker, path[at]))
        read[worker] = version + 1
    return torch.stack(path), staleness


# %% wrong staleness: counts its own update
# says: one too large
def async_sgd_step(weights, gradient, arrivals, lr):
    path, read, staleness = [weights], {}, []
    for worker in arrivals:
        at = read.get(worker, 0)
        path.append(path[-1] - lr * gradient(worker, path[at]))
        staleness.append(len(path) - 1 - at)
        read[worker] = len(path) - 1
    return torch.stack(path), staleness


# %% wrong staleness: counts from the start
# says: since this worker read
def async_sgd_step(weights, gradient, arrivals, lr):
    path, read, staleness = [weights], {}, []
    for version, worker in enumerate(arrivals):
        path.append(path[-1] - lr * gradient(worker, path[read.get(worker, 0)]))
        staleness.append(version)
        read[worker] = version + 1
    return torch.stack(path), staleness


# %% wrong values: a worker first reads when it first arrives
# says: first reads when it first arrives
def async_sgd_step(weights, gradient, arrivals, lr):
    path, read, staleness = [weights.clone()], {}, []
    for now, worker in enumerate(arrivals):
        version = read.get(worker, now)
        path.append(path[-1] - lr * gradient(worker, path[version]))
        staleness.append(now - version)
        read[worker] = now + 1
    return torch.stack(path), staleness


# %% wrong values: workers keep their weights from call to call
def async_sgd_step(weights, gradient, arrivals, lr, copies={}):
    path, staleness, read_at = [weights], [], {}
    for updates, worker in enumerate(arrivals):
        mine = copies.get(worker, weights)
        staleness.append(updates - read_at.get(worker, 0))
        path.append(path[-1] - lr * gradient(worker, mine))
        copies[worker], read_at[worker] = path[-1], updates + 1
    return torch.stack(path), staleness
