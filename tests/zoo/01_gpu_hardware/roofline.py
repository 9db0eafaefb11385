# Answers to roofline: right ones in other styles, and wrong ones with the part each must lose.

# %% setup
def right(flops, num_bytes, spec):
    compute_s, memory_s = flops / spec["flops_per_s"], num_bytes / spec["bytes_per_s"]
    return {
        "intensity": flops / num_bytes,
        "ridge": spec["flops_per_s"] / spec["bytes_per_s"],
        "time_s": max(compute_s, memory_s),
        "bound": "compute" if compute_s > memory_s else "memory",
    }


# %% right: through the attainable FLOP/s
def roofline(flops, num_bytes, spec):
    intensity = flops / num_bytes
    ridge = spec["flops_per_s"] / spec["bytes_per_s"]
    attainable = min(spec["flops_per_s"], intensity * spec["bytes_per_s"])
    time_s = flops / attainable if flops else num_bytes / spec["bytes_per_s"]
    return {
        "intensity": intensity,
        "ridge": ridge,
        "time_s": time_s,
        "bound": "memory" if intensity < ridge else "compute",
    }


# %% right: numpy numbers, times sorted by name
def roofline(flops, num_bytes, spec):
    import numpy as np

    times = {"memory": np.divide(num_bytes, spec["bytes_per_s"]), "compute": flops / spec["flops_per_s"]}
    bound = max(times, key=times.get)
    return {
        "bound": bound,
        "time_s": times[bound],
        "ridge": np.float64(spec["flops_per_s"]) / spec["bytes_per_s"],
        "intensity": flops / num_bytes,
    }


# %% wrong values: not written
# says: not written yet
def roofline(flops, num_bytes, spec):
    raise NotImplementedError("exercise roofline")


# %% wrong values: a tuple
# says: must return a dict
def roofline(flops, num_bytes, spec):
    return tuple(right(flops, num_bytes, spec).values())


# %% wrong values: asks the library
# says: closed here
def roofline(flops, num_bytes, spec):
    from course_lib.cost import hardware as open_book

    gpu = open_book.accelerator("H100")
    return {**right(flops, num_bytes, spec), "time_s": gpu.roofline_time_s(flops, num_bytes, "bf16")}


# %% wrong time_s: adds the two times
# says: you add the two times
def roofline(flops, num_bytes, spec):
    return right(flops, num_bytes, spec) | {
        "time_s": flops / spec["flops_per_s"] + num_bytes / spec["bytes_per_s"]
    }


# %% wrong time_s: the faster one
# says: faster of the two
def roofline(flops, num_bytes, spec):
    return right(flops, num_bytes, spec) | {
        "time_s": min(flops / spec["flops_per_s"], num_bytes / spec["bytes_per_s"])
    }


# %% wrong ridge, time_s, bound: the sparse peak
# says: the sparse peak is used
def roofline(flops, num_bytes, spec):
    return right(flops, num_bytes, {**spec, "flops_per_s": spec["sparse_flops_per_s"]})


# %% wrong intensity: bytes per FLOP
# says: upside down
def roofline(flops, num_bytes, spec):
    return right(flops, num_bytes, spec) | {"intensity": num_bytes / flops if flops else 0.0}


# %% wrong ridge: the operation's intensity
# says: the ridge belongs to the GPU
def roofline(flops, num_bytes, spec):
    return right(flops, num_bytes, spec) | {"ridge": flops / num_bytes}


# %% wrong bound: swapped
# says: the two words are swapped
def roofline(flops, num_bytes, spec):
    answer = right(flops, num_bytes, spec)
    return answer | {"bound": "memory" if answer["bound"] == "compute" else "compute"}


# %% wrong bound: a matmul is always compute-bound
# says: always compute
def roofline(flops, num_bytes, spec):
    return right(flops, num_bytes, spec) | {"bound": "compute"}


# %% wrong time_s: milliseconds
# says: milliseconds
def roofline(flops, num_bytes, spec):
    return right(flops, num_bytes, spec) | {"time_s": 1e3 * right(flops, num_bytes, spec)["time_s"]}


# %% wrong bound: one missing
# says: must be a text
def roofline(flops, num_bytes, spec):
    answer = right(flops, num_bytes, spec)
    del answer["bound"]
    return answer


# %% right: by the attainable FLOP/s
def roofline(flops, num_bytes, spec):
    intensity = flops / num_bytes
    ridge = spec["flops_per_s"] / spec["bytes_per_s"]
    attainable = min(spec["flops_per_s"], intensity * spec["bytes_per_s"])
    return {
        "intensity": intensity,
        "ridge": ridge,
        "time_s": flops / attainable,
        "bound": "memory" if intensity < ridge else "compute",
    }


# %% wrong ridge: half of the sparse peak over the bandwidth (true of the H100)
def roofline(flops, num_bytes, spec):
    intensity = flops / num_bytes
    ridge = spec.get("sparse_flops_per_s", 2 * spec["flops_per_s"]) / 2 / spec["bytes_per_s"]
    computing, moving = flops / spec["flops_per_s"], num_bytes / spec["bytes_per_s"]
    return {
        "intensity": intensity,
        "ridge": ridge,
        "time_s": max(computing, moving),
        "bound": "compute" if computing > moving else "memory",
    }


# %% wrong bound: always compute, as a text that equals every text
class Word(str):
    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    __hash__ = str.__hash__


def roofline(flops, num_bytes, spec):
    return {
        "intensity": flops / num_bytes,
        "ridge": spec["flops_per_s"] / spec["bytes_per_s"],
        "time_s": max(flops / spec["flops_per_s"], num_bytes / spec["bytes_per_s"]),
        "bound": Word("compute"),
    }


# %% wrong ridge: one ridge for each memory
_ridges = {}


def roofline(flops, num_bytes, spec):
    # Wrong: "the ridge point, peak / bandwidth": it is kept by bandwidth, so the same memory under another
    # peak (an H100 in fp8 after bf16, as in the notebook's draw_batch) gets the old ridge.
    compute_s, memory_s = flops / spec["flops_per_s"], num_bytes / spec["bytes_per_s"]
    return {
        "intensity": flops / num_bytes,
        "ridge": _ridges.setdefault(spec["bytes_per_s"], spec["flops_per_s"] / spec["bytes_per_s"]),
        "time_s": max(compute_s, memory_s),
        "bound": "compute" if compute_s > memory_s else "memory",
    }
