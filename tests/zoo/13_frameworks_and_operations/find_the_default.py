# Answers to find_the_default.

# %% setup


# %% right: one pass
def find_the_default(calls):
    places, whole, now, without, seen_backward = [], 0, 0, 0, False
    for place, (phase, op, size) in enumerate(calls):
        moved = size * (1 + (op == "all_reduce"))
        seen_backward |= phase == "backward"
        now += moved
        if op == "all_gather" and phase == "backward":
            places.append(place)
            continue
        without += moved
        whole += size * (op == "all_gather" and not seen_backward)
    return {"calls": places, "now": now / whole, "without": without / whole}


# %% right: P from the gradients that leave
# change: whole = sum(size for phase, op, size in first if op == "all_gather") -> whole = sum(size for _, op, size in calls if op == "reduce_scatter")
# %% right: arrays
# change: {"calls": again, -> {"calls": list(__import__('torch').tensor(again)),
# %% right: in another order, a tuple
# change: {"calls": again, -> {"calls": tuple(again[::-1]),
# %% wrong calls, moved: every gather after a first of its size
# says: fetches what the forward
def find_the_default(calls):
    first = {size for phase, op, size in calls if (phase, op) == ("forward", "all_gather")}
    again = [i for i, (_, op, size) in enumerate(calls) if op == "all_gather" and size not in first]
    whole, total = sum(first), sum(size * (1 + (op == "all_reduce")) for _, op, size in calls)
    return {"calls": again, "now": total / whole, "without": total / whole}


# %% wrong calls, moved: later micro-batches' forwards go too
# says: cannot do without
# change: if (phase, op) == ("backward", "all_gather") -> if op == "all_gather" and (phase == "backward" or any(c[0] == "backward" for c in calls[:i]))
# %% wrong calls, moved: all of backward
# says: cannot do without
# change: if (phase, op) == ("backward", "all_gather") -> if phase == "backward"
# %% wrong calls, moved: the forward's
# says: fetches what the forward
# change: if (phase, op) == ("backward", "all_gather") -> if (phase, op) == ("forward", "all_gather")
# %% wrong calls: counted from 1
# says: fetches what the forward
# change: {"calls": again, -> {"calls": [i + 1 for i in again],
# %% wrong calls: how many
# change: {"calls": again, -> {"calls": len(again),
# %% wrong moved: an all_reduce once
# says: twice
# change: (2 if op == "all_reduce" else 1) * size -> size
# %% wrong moved: P of all forwards
# says: one forward gathers
# change: whole = sum(size for phase, op, size in first if op == "all_gather") -> whole = sum(size for phase, op, size in calls if (phase, op) == ("forward", "all_gather"))
# %% wrong moved: bytes, not multiples
# change: whole = sum(size for phase, op, size in first if op == "all_gather") -> whole = 1
# %% wrong moved: the difference
# says: without must be
# change: "without": moved(rest) / whole -> "without": (moved(calls) - moved(rest)) / whole
# %% wrong calls, moved: two numbers
# says: must return a dict
# change: return {"calls": again, "now": moved(calls) / whole, "without": moved(rest) / whole} -> return moved(calls) / whole, moved(rest) / whole
