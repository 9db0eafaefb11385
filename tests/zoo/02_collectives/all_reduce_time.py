# Answers to all_reduce_time: right ones in other styles, and wrong ones with the part each must lose.
# Longer than 150 lines: each mistake is a formula for ring, tree and auto.

# %% setup
import math


def ring(size, n, a, b):
    return 2 * (n - 1) * (a + size / n / b)


def tree(size, n, a, b):
    return 2 * math.ceil(math.log2(n)) * (a + size / b)


# %% right: by the crossover, a table of functions
def all_reduce_time(size_bytes, n, latency_s, bandwidth, algorithm):
    rounds = math.ceil(math.log2(n))
    gain = rounds - (n - 1) / n
    change = latency_s * bandwidth * (n - 1 - rounds) / gain if gain > 0 else 0.0
    if algorithm == "auto":
        algorithm = "ring" if size_bytes >= change else "tree"
    return {"ring": ring, "tree": tree}[algorithm](size_bytes, n, latency_s, bandwidth)


# %% right: adds up step by step
def all_reduce_time(size_bytes, n, latency_s, bandwidth, algorithm):
    def one(name):
        total, span = 0.0, 1
        if name == "ring":
            for _ in range(n - 1):
                total += latency_s + size_bytes / (n * bandwidth)
        while name == "tree" and span < n:
            total += latency_s + size_bytes / bandwidth
            span *= 2
        return 2 * total

    return min(map(one, ("ring", "tree"))) if algorithm == "auto" else one(algorithm)


# %% right: numpy floats
def all_reduce_time(size_bytes, n, latency_s, bandwidth, algorithm):
    import numpy as np

    both = np.array([f(size_bytes, n, latency_s, bandwidth) for f in (ring, tree)])
    return both.min() if algorithm == "auto" else both[0 if algorithm == "ring" else 1]


# %% wrong ring, tree, crossover: does nothing
# says: must
def all_reduce_time(size_bytes, n, latency_s, bandwidth, algorithm):
    return 0.0


# %% wrong ring, crossover: one half of the ring
# says: an all_gather follows
def all_reduce_time(size_bytes, n, latency_s, bandwidth, algorithm):
    times = {
        "ring": ring(size_bytes, n, latency_s, bandwidth) / 2,
        "tree": tree(size_bytes, n, latency_s, bandwidth),
    }
    return times.get(algorithm, min(times.values()))


# %% wrong ring, crossover: whole messages on the ring
# says: each step carries a chunk
# says: repair them first
def all_reduce_time(size_bytes, n, latency_s, bandwidth, algorithm):
    times = {
        "ring": 2 * (n - 1) * (latency_s + size_bytes / bandwidth),
        "tree": tree(size_bytes, n, latency_s, bandwidth),
    }
    return times.get(algorithm, min(times.values()))


# %% wrong ring, crossover: latency once
# says: latency is paid once instead of in every step
def all_reduce_time(size_bytes, n, latency_s, bandwidth, algorithm):
    latency = latency_s if n > 1 else 0.0
    times = {
        "ring": latency + 2 * (n - 1) / n * size_bytes / bandwidth,
        "tree": tree(size_bytes, n, latency_s, bandwidth),
    }
    return times.get(algorithm, min(times.values()))


# %% wrong ring: right at two ranks only, 2(n-1)/n taken for 1, and latency for 2
# says: algorithm=ring
def all_reduce_time(size_bytes, n, latency_s, bandwidth, algorithm):
    if algorithm == "ring":
        return (2 * latency_s + size_bytes / bandwidth) * (n > 1)
    both = ring(size_bytes, n, latency_s, bandwidth), tree(size_bytes, n, latency_s, bandwidth)
    return both[1] if algorithm == "tree" else min(both)


# %% wrong tree, crossover: powers of two only
# says: log2 n is rounded down
def all_reduce_time(size_bytes, n, latency_s, bandwidth, algorithm):
    times = {
        "ring": ring(size_bytes, n, latency_s, bandwidth),
        "tree": 2 * (n.bit_length() - 1) * (latency_s + size_bytes / bandwidth),
    }
    return times.get(algorithm, min(times.values()))


# %% wrong tree, crossover: log2 not rounded
# says: log2 n is not rounded up
def all_reduce_time(size_bytes, n, latency_s, bandwidth, algorithm):
    times = {
        "ring": ring(size_bytes, n, latency_s, bandwidth),
        "tree": 2 * math.log2(n) * (latency_s + size_bytes / bandwidth),
    }
    return times.get(algorithm, min(times.values()))


# %% wrong tree, crossover: only the reduce
# says: a broadcast follows
def all_reduce_time(size_bytes, n, latency_s, bandwidth, algorithm):
    times = {
        "ring": ring(size_bytes, n, latency_s, bandwidth),
        "tree": tree(size_bytes, n, latency_s, bandwidth) / 2,
    }
    return times.get(algorithm, min(times.values()))


# %% wrong tree, crossover: a star
# says: one by one
def all_reduce_time(size_bytes, n, latency_s, bandwidth, algorithm):
    times = {
        "ring": ring(size_bytes, n, latency_s, bandwidth),
        "tree": 2 * (n - 1) * (latency_s + size_bytes / bandwidth),
    }
    return times.get(algorithm, min(times.values()))


# %% wrong crossover: auto is always the ring
# says: it is always the ring
def all_reduce_time(size_bytes, n, latency_s, bandwidth, algorithm):
    return (tree if algorithm == "tree" else ring)(size_bytes, n, latency_s, bandwidth)


# %% wrong crossover: auto changes over at latency times bandwidth
# says: algorithm=auto
def all_reduce_time(size_bytes, n, latency_s, bandwidth, algorithm):
    small = algorithm == "auto" and size_bytes < latency_s * bandwidth
    return (tree if algorithm == "tree" or small else ring)(size_bytes, n, latency_s, bandwidth)


# %% wrong crossover: auto is not known
# says: must be a number
def all_reduce_time(size_bytes, n, latency_s, bandwidth, algorithm):
    if algorithm == "auto":
        return "ring" if size_bytes > 1e6 else "tree"
    return (tree if algorithm == "tree" else ring)(size_bytes, n, latency_s, bandwidth)


# %% wrong values: asks the library's cost model
# says: is closed here
def all_reduce_time(size_bytes, n, latency_s, bandwidth, algorithm):
    from course_lib.cost.cluster import uniform
    from course_lib.cost.collectives import collective_time_s

    return collective_time_s(uniform(n, latency_s, bandwidth), "all_reduce", range(n), size_bytes, algorithm)


# %% wrong crossover: an approximate size at which they change places
def all_reduce_time(size_bytes, n, latency_s, bandwidth, algorithm):
    if algorithm == "auto":
        L = (n - 1).bit_length()
        algorithm = "ring" if n < 3 or size_bytes >= latency_s * bandwidth * (n - 1 - L) / (L - 1) else "tree"
    if algorithm == "ring":
        return 2 * (n - 1) * (latency_s + size_bytes / n / bandwidth)
    return 2 * (n - 1).bit_length() * (latency_s + size_bytes / bandwidth)


# %% wrong ring, tree, crossover: remembered without the link
_KNOWN = {}


def all_reduce_time(size_bytes, n, latency_s, bandwidth, algorithm):
    # Wrong: "Ring: the formula", with its latency and bandwidth: results are kept by size, ranks and
    # algorithm,
    # so the same question about another link gets the answer for the first.
    key = (size_bytes, n, algorithm)
    if key not in _KNOWN:
        if algorithm == "ring":
            _KNOWN[key] = 2 * (n - 1) * (latency_s + size_bytes / n / bandwidth)
        elif algorithm == "tree":
            _KNOWN[key] = 2 * (n - 1).bit_length() * (latency_s + size_bytes / bandwidth)
        else:
            _KNOWN[key] = min(
                all_reduce_time(size_bytes, n, latency_s, bandwidth, name) for name in ("ring", "tree")
            )
    return _KNOWN[key]
