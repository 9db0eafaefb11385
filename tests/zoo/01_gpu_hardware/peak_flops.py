# Answers to peak_flops: right ones in other styles, and wrong ones with the part each must lose.

# %% setup
import math


def right(spec, unit):
    fma = {
        "fp32": spec["fp32_cores_per_sm"],
        "tensor": spec["tensor_cores_per_sm"] * spec["fma_per_clock_per_tensor_core"],
    }
    return fma[unit] * 2 * spec["num_sms"] * spec[unit + "_clock_hz"]


# %% right: a table of both units
def peak_flops(spec, unit):
    return (
        {
            "fp32": lambda s: s["fp32_cores_per_sm"] * s["fp32_clock_hz"],
            "tensor": lambda s: (
                s["tensor_cores_per_sm"] * s["fma_per_clock_per_tensor_core"] * s["tensor_clock_hz"]
            ),
        }[unit](spec)
        * 2
        * spec["num_sms"]
    )


# %% right: a product of factors, as a numpy number
def peak_flops(spec, unit):
    import numpy as np

    names = {
        "fp32": ["num_sms", "fp32_cores_per_sm", "fp32_clock_hz"],
        "tensor": ["num_sms", "tensor_cores_per_sm", "fma_per_clock_per_tensor_core", "tensor_clock_hz"],
    }
    return np.float64(2 * math.prod(spec[name] for name in names[unit]))


# %% wrong values: not written
# says: not written yet
def peak_flops(spec, unit):
    raise NotImplementedError("exercise peak_flops")


# %% wrong values: asks the library
# says: closed here
def peak_flops(spec, unit):
    from course_lib.cost.hardware import accelerator as find

    return find(spec["name"]).peak_flops_per_s("float32" if unit == "fp32" else "float16")


# %% wrong values: asks the library through importlib and getattr
# says: closed here
def peak_flops(spec, unit):
    import importlib

    return getattr(importlib.import_module("course_lib.cost.hardware"), "accelerator")(spec["name"])


# %% wrong fp32, tensor: a multiply-add is one FLOP
# says: it multiplies and adds
def peak_flops(spec, unit):
    return right(spec, unit) / 2


# %% wrong tensor: the sparse peak
# says: sparse peak
def peak_flops(spec, unit):
    return right(spec, unit) * (spec["sparse_speedup"] if unit == "tensor" else 1)


# %% wrong tensor: the clock of the FP32 cores
# says: clock of the other unit (fp32)
def peak_flops(spec, unit):
    return right(spec, unit) / spec[f"{unit}_clock_hz"] * spec["fp32_clock_hz"]


# %% wrong fp32, tensor: all SMs of the die
# says: switched off
def peak_flops(spec, unit):
    return right({**spec, "num_sms": spec["sms_on_die"]}, unit)


# %% wrong fp32, tensor: one SM
# says: you compute one SM
def peak_flops(spec, unit):
    return right({**spec, "num_sms": 1}, unit)


# %% wrong fp32, tensor: in TFLOP/s
# says: FLOP/s are asked
def peak_flops(spec, unit):
    return right(spec, unit) / 1e12


# %% wrong fp32: ignores the unit
# says: you ignore `unit`
def peak_flops(spec, unit):
    return right(spec, "tensor")


# %% wrong fp32, tensor: H100 by heart
def peak_flops(spec, unit):
    return 989e12 if unit == "tensor" else 67e12


# %% wrong fp32, tensor: a text
# says: must be a number
def peak_flops(spec, unit):
    return f"{right(spec, unit) / 1e12} TFLOP/s"


# %% wrong tensor: the two FLOPs of a multiply-add are taken from the sparse speed-up
def peak_flops(spec, unit):
    if unit == "fp32":
        return 2 * spec["fp32_cores_per_sm"] * spec["num_sms"] * spec["fp32_clock_hz"]
    per_sm = spec["tensor_cores_per_sm"] * spec["fma_per_clock_per_tensor_core"]
    return spec["sparse_speedup"] * per_sm * spec["num_sms"] * spec["tensor_clock_hz"]


# %% wrong values: peaks are remembered by the name of the gpu, another part of that name gets the old ones
# says: not by their order or name
_peaks_by_name = {}


def peak_flops(spec, unit):
    key = (spec.get("name"), unit)
    if key not in _peaks_by_name:
        if unit == "fp32":
            fma = spec["fp32_cores_per_sm"]
        else:
            fma = spec["tensor_cores_per_sm"] * spec["fma_per_clock_per_tensor_core"]
        _peaks_by_name[key] = 2 * fma * spec["num_sms"] * spec[f"{unit}_clock_hz"]
    return _peaks_by_name[key]


# %% wrong tensor: the lower of the two clocks
def peak_flops(spec, unit):
    # Wrong: "The two units have different clocks": the tensor peak has the tensor clock, also on a GPU where
    # that is the higher one.
    if unit == "fp32":
        return 2 * spec["num_sms"] * spec["fp32_cores_per_sm"] * spec["fp32_clock_hz"]
    fmas = spec["tensor_cores_per_sm"] * spec["fma_per_clock_per_tensor_core"]
    return 2 * spec["num_sms"] * fmas * min(spec["tensor_clock_hz"], spec["fp32_clock_hz"])
