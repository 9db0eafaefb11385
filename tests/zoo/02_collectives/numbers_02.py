# Answers to numbers_02: right ones in other styles, and wrong ones with the part each must lose.

# %% setup
# from: numbers from paper
# %% right: numbers from paper
def numbers_02():
    right = {
        "star_s": 20.16,
        "tree_s": 1.92,
        "tiny_ring_s": 0.02046,
        "busbw": 375e9,
        "crossing_bytes": 3.75e9,
    }
    return dict(right)


# %% right: integers and arithmetic
# change: dict(right) -> right | {"busbw": 375 * 10**9, "star_s": 63 * 16 / 50, "crossing_bytes": 15 * 16 * 10**9 // 64}
# %% wrong star_s: sends to itself too
# says: there are 63 others
# change: dict(right) -> right | {"star_s": 64 * 0.32}
# %% wrong tree_s: a reduce and a broadcast
# says: a broadcast takes log2 n rounds
# change: dict(right) -> right | {"tree_s": 12 * 0.32}
# %% wrong tree_s: one round too few
# says: only 5 rounds
# change: dict(right) -> right | {"tree_s": 5 * 0.32}
# %% wrong tiny_ring_s: n steps instead of n-1
# says: n steps per half
# change: dict(right) -> right | {"tiny_ring_s": 2 * 1024 * 10e-6}
# %% wrong tiny_ring_s: in milliseconds
# says: give seconds
# change: dict(right) -> right | {"tiny_ring_s": 20.46}
# %% wrong busbw: the algorithm bandwidth
# says: algorithm bandwidth
# change: dict(right) -> right | {"busbw": 200e9}
# %% wrong crossing_bytes: the whole tensor across
# says: a k-th
# change: dict(right) -> right | {"crossing_bytes": 30e9}
# %% wrong crossing_bytes, busbw: in GB
# says: give bytes
# change: dict(right) -> right | {"crossing_bytes": 3.75, "busbw": 375}
# %% wrong star_s, tree_s, tiny_ring_s, busbw, crossing_bytes: does nothing
# says: must have the key
# change: dict(right) -> {}
