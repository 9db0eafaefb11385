# Answers to missing_number: right ones in other styles, and wrong ones with the part each must lose.

# %% setup
import math

COUNTS = ["num_sms", "tensor_cores_per_sm", "fma_per_clock_per_tensor_core"]


# %% right: by logarithms, one equation solved for any of them
def missing_number(sheet):
    sign = dict.fromkeys([*COUNTS, "clock_hz"], 1) | {"peak_flops_per_s": -1}
    rest = math.log(4 if sheet["with_sparsity"] else 2)
    rest += sum(s * math.log(sheet[name]) for name, s in sign.items() if sheet[name] is not None)
    missing = next(name for name in sign if sheet[name] is None)
    value = math.exp(-sign[missing] * rest)
    return round(value) if missing in COUNTS else value


# %% right: numpy, one case after the other
def missing_number(sheet):
    import numpy as np

    dense = (
        None
        if sheet["peak_flops_per_s"] is None
        else sheet["peak_flops_per_s"] / (1 + sheet["with_sparsity"])
    )
    factors = {name: sheet[name] for name in [*COUNTS, "clock_hz"]}
    known = 2 * np.prod([float(value) for value in factors.values() if value is not None])
    if dense is None:
        return known * 2 if sheet["with_sparsity"] else known
    value = dense / known
    return value if factors["clock_hz"] is None else int(value + 0.5)


# %% right: in parts
def missing_number(sheet):
    known = 4 if sheet["with_sparsity"] else 2
    for name in (*COUNTS, "clock_hz"):
        if sheet[name] is None:
            missing = name
        else:
            known *= sheet[name]
    if sheet["peak_flops_per_s"] is None:
        return known
    value = sheet["peak_flops_per_s"] / known
    return value if missing == "clock_hz" else round(value)


# %% wrong values: not written
# says: not written yet
def missing_number(sheet):
    raise NotImplementedError("exercise missing_number")


# %% wrong values: asks the library
# says: closed here
def missing_number(sheet):
    from course_lib.cost.hardware import accelerator as find

    return find(sheet["name"]).peak_flops_per_s("float16")


# %% wrong values: fills the hole in the sheet of its caller
# says: argument 'sheet' must stay as it was
def missing_number(sheet):
    hole = next(name for name, value in sheet.items() if value is None)
    sheet[hole] = 1
    return sheet[hole]


# %% wrong counts, clock, peak: the footnote is not read
# says: the footnote is not read
# from: in parts
# change: 4 if sheet["with_sparsity"] else 2 -> 2
# %% wrong counts, clock, peak: a multiply-add is one FLOP
# says: it multiplies and adds
# from: in parts
# change: 4 if sheet["with_sparsity"] else 2 -> 2 if sheet["with_sparsity"] else 1
# %% wrong counts, clock, peak: all SMs on the die
# says: switched off
# from: in parts
# change: known *= sheet[name] -> known *= sheet["sms_on_die" if name == "num_sms" else name]
# change: value = -> value = sheet["sms_on_die"] if missing == "num_sms" else
# %% wrong counts, clock, peak: the clock of the FP32 cores
# says: clock of the FP32 cores
# from: in parts
# change: known *= sheet[name] -> known *= sheet["fp32_clock_hz" if name == "clock_hz" else name]
# change: value = -> value = sheet["fp32_clock_hz"] if missing == "clock_hz" else
# %% wrong counts: not rounded
# says: is not rounded
# from: in parts
# change: round(value) -> value
# %% wrong counts: rounded down
# says: rounded down
# from: in parts
# change: round(value) -> int(value)
# %% wrong clock: in GHz
# from: in parts
# change: return value if missing == "clock_hz" -> return value / 1e9 if missing == "clock_hz"
# %% wrong peak: the dense peak of a sheet that prints the sparse one
# says: the footnote is not read
# from: in parts
# change: return known -> return known / (2 if sheet["with_sparsity"] else 1)
# %% wrong counts, clock, peak: the H100 by heart
def missing_number(sheet):
    h100 = {
        "num_sms": 132,
        "tensor_cores_per_sm": 4,
        "fma_per_clock_per_tensor_core": 512,
        "clock_hz": 1.83e9,
    }
    return next((v for name, v in h100.items() if sheet[name] is None), 1979e12)


# %% wrong counts, clock, peak: a text
# says: must be a number
# from: in parts
# change: return known -> return str(known)
# change: return value if missing == "clock_hz" else round(value) -> return str(value)
