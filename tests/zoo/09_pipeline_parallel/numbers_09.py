# Answers to numbers_09.


# %% right: plain numbers
def numbers_09():
    return {
        "busy_share": 0.5333,
        "enough": 133,
        "idle_share": 0.1049,
        "boundary_bytes": 33_554_432,
        "held_bytes": 7.301e10,
    }


# %% right: by formulas
def numbers_09():
    def idle(p, m, v=1):
        return (p - 1) / v / (m + (p - 1) / v)

    activation = 8192 * 16384
    enough = next(m for m in range(1, 1000) if idle(8, m) <= 0.05 + 1e-12)
    return {
        "busy_share": 1 - idle(8, 8),
        "enough": float(enough),
        "idle_share": idle(16, 16, 8),
        "boundary_bytes": activation / 4,
        "held_bytes": 34 * activation / 8 * 8 * 16,
    }


# %% wrong busy_share: the idle share
# says: the idle share is given
# change: 8 / (8 + 7) -> 7 / 15
# %% wrong enough: idle over work
# says: over the work
# change: 19 * 7 -> 140
# %% wrong idle_share: not interleaved
# says: nothing is interleaved
# change: bubble = 15 / 8 -> bubble = 15
# %% wrong idle_share: over the work
# says: over the work
# change: bubble / (16 + bubble) -> bubble / 16
# %% wrong boundary_bytes: all of it
# says: has an eighth
# change: 2 * 8192 * 16384 / 8 -> 2 * 8192 * 16384
# %% wrong held_bytes: one micro-batch
# says: on the first stage there are p
# change: 16 * 8 * 34 -> 8 * 34
# %% wrong busy_share, enough, idle_share, boundary_bytes, held_bytes: nothing
def numbers_09():
    return {}


# %% wrong busy_share: in percent
# says: Off by 100
# change: 8 / (8 + 7) -> 100 * 8 / (8 + 7)
