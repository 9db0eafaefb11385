# Answers to numbers_03: right ones in other styles, and wrong ones with the part each must lose.

# %% setup
# from: rounded by hand
# %% right: rounded by hand
def numbers_03():
    right = {
        "sent_bytes": 264.6e9,
        "all_reduce_s": 5.29,
        "num_buckets": 5383,
        "efficiency": 0.844,
        "repeated_samples": 61,
    }
    return dict(right)


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


# %% wrong sent_bytes, all_reduce_s: forgot 2(n-1)/n
# says: every gradient is sent once
# change: dict(right) -> right | {"sent_bytes": 2 * 70_553_706_496, "all_reduce_s": 2 * 70_553_706_496 / 50e9}
# %% wrong sent_bytes, all_reduce_s: twice the buffer
# says: the factor is 2 instead of 2(n-1)/n
# change: dict(right) -> right | {"sent_bytes": 282.2e9, "all_reduce_s": 5.644}
# %% wrong sent_bytes: in GiB
# says: in GiB
# change: dict(right) -> right | {"sent_bytes": 246.4}
# %% wrong sent_bytes: float32 gradients
# says: bf16 has 2
# change: dict(right) -> right | {"sent_bytes": 529.2e9}
# %% wrong all_reduce_s: bits taken for bytes
# says: 8 bits are one byte
# change: dict(right) -> right | {"all_reduce_s": 264.6e9 / 400e9}
# %% wrong num_buckets: a megabyte of 10**6 bytes
# says: 25 * 2**20
# change: dict(right) -> right | {"num_buckets": -(-141_107_412_992 // 25_000_000)}
# %% wrong num_buckets: rounded down
# says: part-filled bucket
# change: dict(right) -> right | {"num_buckets": 141_107_412_992 // (25 * 2**20)}
# %% wrong efficiency: the speed-up
# says: divided by 8
# change: dict(right) -> right | {"efficiency": 81 / 12}
# %% wrong repeated_samples: what drop_last would lose
# says: drop_last=True
# change: dict(right) -> right | {"repeated_samples": 1_000_003 % 64}
