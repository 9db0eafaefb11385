# Answers to numbers_13.

# %% setup
from math import sqrt


# %% right: formulas
def numbers_13():
    mtbf, save, restart = 54 * 24 * 3600 / 419, 60, 300
    young = sqrt(2 * save * mtbf)
    return {
        "zero2_bytes": 3 * 14e9,
        "fp8_error": 0.5 * 2**-3,
        "save_bytes": (2 + 12) * 70e9 / 64,
        "hours_between_failures": mtbf * 8 / 3600,
        "goodput": 1 - save / young - (young / 2 + restart) / mtbf,
    }


# %% right: numbers
def numbers_13():
    return {
        "zero2_bytes": 42e9,
        "fp8_error": 0.0625,
        "save_bytes": 15.3e9,
        "hours_between_failures": 24.7,
        "goodput": 0.869,
    }


# %% wrong zero2_bytes: the paper's
# says: the default moves 3 P
# from: formulas
# change: 3 * 14e9 -> 2 * 14e9
# %% wrong fp8_error: a whole step
# says: half of one
# from: formulas
# change: 0.5 * 2**-3 -> 2**-3
# %% wrong save_bytes: gradients too
# says: gradients are saved
# from: formulas
# change: (2 + 12) -> (2 + 2 + 12)
# %% wrong save_bytes: all by everyone
# says: every rank writes everything
# from: formulas
# change: 70e9 / 64 -> 70e9
# %% wrong save_bytes: no bf16 weights
# says: bf16 weights are left out
# from: formulas
# change: (2 + 12) -> 12
# %% wrong hours_between_failures: the large job's
# says: number of GPUs
# from: formulas
# change: mtbf * 8 / 3600 -> mtbf / 3600
# %% wrong hours_between_failures: the wrong way
# says: fewer GPUs
# from: formulas
# change: mtbf * 8 / 3600 -> mtbf / 8 / 3600
# %% wrong goodput: no restart
# says: restart is left out
# from: formulas
# change: save, restart = 54 * 24 * 3600 / 419, 60, 300 -> save, restart = 54 * 24 * 3600 / 419, 60, 0
# %% wrong goodput: a whole interval lost
# says: on average it is half
# from: formulas
# change: young / 2 + -> young +
# %% wrong goodput: the loss
# says: share that was lost
# from: formulas
# change: 1 - save / young - (young / 2 + restart) / mtbf -> save / young + (young / 2 + restart) / mtbf
