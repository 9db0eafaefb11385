# Answers to numbers_05: right ones in other styles, and wrong ones with the part each must lose.

# %% setup
RIGHT = {
    "fsdp_sent_bytes": 42.16e9,
    "over_ddp": 1.0,
    "hsdp_across_bytes": 33.07e9,
    "parameter_peak_bytes": 13.54e9,
    "min_gpus": 97,
}


# %% right: rounded by hand
def numbers_05():
    return dict(RIGHT)


# %% right: step by step with numpy numbers
def numbers_05():
    import numpy as np

    ring = np.float64(7) / 8 * 8_030_261_248 * 2
    shard = np.float64(70_553_706_496) * 2 / 8
    unit = 3_187_703_808 * 2
    n = 1
    while 16 * 405_853_388_800 / n + 2 * unit > 80e9:
        n += 1
    return {
        "fsdp_sent_bytes": ring + ring + ring,
        "over_ddp": np.float64(2 * 2 + 4) / (2 * 4),
        "hsdp_across_bytes": shard * 30 / 16,
        "parameter_peak_bytes": 405_853_388_800 * 2 / 1024 + unit + unit,
        "min_gpus": np.int64(n),
    }


# %% wrong fsdp_sent_bytes, over_ddp, hsdp_across_bytes, parameter_peak_bytes, min_gpus: a list
# says: must return a dict
def numbers_05():
    return list(RIGHT.values())


# %% wrong fsdp_sent_bytes, over_ddp: three moves against one
# says: it is two moves of 4 bytes
def numbers_05():
    return RIGHT | {"fsdp_sent_bytes": 3 * 16_060_522_496, "over_ddp": 2}


# %% wrong fsdp_sent_bytes: gathered once
# says: one move is left out
def numbers_05():
    return RIGHT | {"fsdp_sent_bytes": 28.1e9}


# %% wrong hsdp_across_bytes: the whole gradient crosses
# says: only the rank's shard does
def numbers_05():
    return RIGHT | {"hsdp_across_bytes": 264.6e9}


# %% wrong hsdp_across_bytes: a ring of all ranks
# says: where m counts servers
def numbers_05():
    return RIGHT | {"hsdp_across_bytes": 2 * 127 / 128 * 2 * 70_553_706_496 / 8}


# %% wrong parameter_peak_bytes: one unit
# says: depth 1 holds two units
def numbers_05():
    return RIGHT | {"parameter_peak_bytes": 7.17e9}


# %% wrong min_gpus: without whole units
# says: left out
def numbers_05():
    return RIGHT | {"min_gpus": 82}


# %% wrong min_gpus: rounded down
# says: round down
def numbers_05():
    return RIGHT | {"min_gpus": 96}


# %% wrong over_ddp, min_gpus: words
def numbers_05():
    return RIGHT | {"over_ddp": "1x", "min_gpus": None}


# %% wrong fsdp_sent_bytes: the factor (n - 1)/n is left out
def numbers_05():
    return RIGHT | {"fsdp_sent_bytes": 3 * 2 * 8_030_261_248}


# %% wrong hsdp_across_bytes: a reduce_scatter of the shard across, nothing comes back
def numbers_05():
    return RIGHT | {"hsdp_across_bytes": 15 / 16 * 2 * 70_553_706_496 / 8}


# %% wrong parameter_peak_bytes: the shards of 1,024 GPUs are added
def numbers_05():
    return RIGHT | {"parameter_peak_bytes": 2 * 405_853_388_800 + 4 * 3_187_703_808}


# %% wrong parameter_peak_bytes, min_gpus: gibibytes
def numbers_05():
    return RIGHT | {"parameter_peak_bytes": 13.54e9 * 1e9 / 2**30, "min_gpus": 88}


# %% wrong over_ddp: as in bf16
# says: all moves have equally many bytes: parameters
def numbers_05():
    return RIGHT | {"over_ddp": 1.5}


# %% right: fractions and Python's own integers
from fractions import Fraction


def numbers_05():
    moves, mixed = Fraction(3, 2), Fraction(2 + 2 + 4, 4 + 4)
    ddp = Fraction(2 * 7, 8) * 2 * 8_030_261_248
    return {
        "min_gpus": -(-16 * 405_853_388_800 // (80 * 10**9 - 4 * 3_187_703_808)),
        "fsdp_sent_bytes": float(moves * ddp),
        "over_ddp": float(mixed),
        "hsdp_across_bytes": 33_072_049_920,
        "parameter_peak_bytes": 2 * (405_853_388_800 / 1024) + 2 * 2 * 3_187_703_808,
    }
