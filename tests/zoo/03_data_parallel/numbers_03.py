# Answers to numbers_03: right ones in other styles, and wrong ones with the part each must lose.

# %% setup
import math

RIGHT = {
    "sent_bytes": 264.6e9,
    "all_reduce_s": 5.29,
    "num_buckets": 5383,
    "efficiency": 0.844,
    "repeated_samples": 61,
}


# %% right: rounded by hand
def numbers_03():
    return dict(RIGHT)


# %% right: computed step by step with numpy numbers
def numbers_03():
    import numpy as np

    n, gradients_bytes = 16, np.float64(70_553_706_496 * 2)
    one_phase_bytes = gradients_bytes / n * (n - 1)
    samples_per_rank = np.ceil(1_000_003 / 64)
    return {
        "sent_bytes": one_phase_bytes + one_phase_bytes,
        "all_reduce_s": 2 * one_phase_bytes * 8 / 400e9,
        "num_buckets": np.int64(np.ceil(gradients_bytes / (25 * 1024 * 1024))),
        "efficiency": np.float64(81.0) / 12 / 8,
        "repeated_samples": samples_per_rank * 64 - 1_000_003,
    }


# %% wrong sent_bytes, all_reduce_s, num_buckets, efficiency, repeated_samples: a list
# says: must return a dict
def numbers_03():
    return list(RIGHT.values())


# %% wrong sent_bytes, all_reduce_s: forgot 2(n-1)/n
# says: every gradient is sent once
def numbers_03():
    sent_bytes = 70_553_706_496 * 2
    return RIGHT | {"sent_bytes": sent_bytes, "all_reduce_s": sent_bytes / 50e9}


# %% wrong sent_bytes, all_reduce_s: twice the buffer
# says: the factor is 2 instead of 2(n-1)/n
def numbers_03():
    return RIGHT | {"sent_bytes": 282.2e9, "all_reduce_s": 5.644}


# %% wrong sent_bytes: in GiB
# says: in GiB
def numbers_03():
    return RIGHT | {"sent_bytes": 246.4}


# %% wrong sent_bytes: float32 gradients
# says: bf16 has 2
def numbers_03():
    return RIGHT | {"sent_bytes": 529.2e9}


# %% wrong all_reduce_s: bits taken for bytes
# says: 8 bits are one byte
def numbers_03():
    return RIGHT | {"all_reduce_s": 264.6e9 / 400e9}


# %% wrong num_buckets: a megabyte of 10**6 bytes
# says: 25 * 2**20
def numbers_03():
    return RIGHT | {"num_buckets": math.ceil(141_107_412_992 / 25e6)}


# %% wrong num_buckets: rounded down
# says: part-filled bucket
def numbers_03():
    return RIGHT | {"num_buckets": 141_107_412_992 // (25 * 2**20)}


# %% wrong efficiency: the speed-up
# says: divided by 8
def numbers_03():
    return RIGHT | {"efficiency": 81 / 12}


# %% wrong repeated_samples: what drop_last would lose
# says: drop_last=True
def numbers_03():
    return RIGHT | {"repeated_samples": 1_000_003 % 64}


# %% wrong sent_bytes, all_reduce_s, num_buckets, efficiency: only one filled in
# says: must be a number
def numbers_03():
    return {"repeated_samples": 61, "sent_bytes": None}
