# Answers to transfer_time: right ones in other styles, and wrong ones with the part each must lose.

# %% setup
def find(a, b, cluster):
    return next(s for s in cluster["spans"] if a // s["gpus"] == b // s["gpus"])


def answer(size_bytes, span, divide=None):
    bits, both = "bits" in span["unit"], "both" in span["unit"]
    rate = span["bandwidth"] / (divide or (8 if bits else 1) * (2 if both else 1))
    return {"span": span["name"], "bytes_per_s": rate, "time_s": span["latency_s"] + size_bytes / rate}


# %% right: the widest span that separates them, then one more
def link_between(a, b, cluster):
    spans = cluster["spans"]
    apart = [span for span in spans if a // span["gpus"] != b // span["gpus"]]
    return spans[len(apart)]


def transfer_time(size_bytes, a, b, cluster):
    span = link_between(a, b, cluster)
    factor = {"bytes/s": 1, "bytes/s both ways": 2, "bits/s": 8, "bits/s both ways": 16}[span["unit"]]
    seconds = size_bytes * factor / span["bandwidth"] + span["latency_s"]
    return {"time_s": seconds, "span": span["name"], "bytes_per_s": span["bandwidth"] / factor}


# %% right: all in one function, blocks as ranges
def transfer_time(size_bytes, a, b, cluster):
    for span in cluster["spans"]:
        start = a - a % span["gpus"]
        if b in range(start, start + span["gpus"]):
            break
    rate = float(span["bandwidth"])
    for word, factor in (("bits", 8), ("both", 2)):
        if word in span["unit"]:
            rate = rate / factor
    return {"span": span["name"], "bytes_per_s": rate, "time_s": span["latency_s"] + size_bytes / rate}


# %% wrong values: not written
# says: not written yet
def transfer_time(size_bytes, a, b, cluster):
    raise NotImplementedError("exercise transfer_time")


# %% wrong values: only the seconds
# says: must return a dict
def transfer_time(size_bytes, a, b, cluster):
    return answer(size_bytes, find(a, b, cluster))["time_s"]


# %% wrong values: asks the library
# says: closed here
def transfer_time(size_bytes, a, b, cluster):
    from course_lib.cost.cluster import meta_24k as preset

    link = preset().link_between(a, b)
    return {"span": "pod", "bytes_per_s": link.bandwidth_bytes_per_s, "time_s": link.time_s(size_bytes)}


# %% wrong span, bytes_per_s, time_s: neighbours by number are taken for neighbours by wire
# says: neighbours in different servers
def transfer_time(size_bytes, a, b, cluster):
    return answer(size_bytes, next(s for s in cluster["spans"] if abs(a - b) < s["gpus"]))


# %% wrong span, bytes_per_s, time_s: always the outermost network
# says: the smallest is asked
def transfer_time(size_bytes, a, b, cluster):
    return answer(size_bytes, cluster["spans"][-1])


# %% wrong bytes_per_s, time_s: both ways
# says: both ways is taken for one way
def transfer_time(size_bytes, a, b, cluster):
    span = find(a, b, cluster)
    return answer(size_bytes, span, 8 if "bits" in span["unit"] else 1)


# %% wrong bytes_per_s, time_s: bits for bytes
# says: bits are taken for bytes
def transfer_time(size_bytes, a, b, cluster):
    span = find(a, b, cluster)
    return answer(size_bytes, span, 2 if "both" in span["unit"] else 1)


# %% wrong bytes_per_s, time_s: the unit is not read
# says: `unit` is not read
def transfer_time(size_bytes, a, b, cluster):
    return answer(size_bytes, find(a, b, cluster), 1)


# %% wrong time_s: no latency
# says: the latency is left out
def transfer_time(size_bytes, a, b, cluster):
    right = answer(size_bytes, find(a, b, cluster))
    return {**right, "time_s": size_bytes / right["bytes_per_s"]}


# %% wrong time_s: there and back
# says: there and back
def transfer_time(size_bytes, a, b, cluster):
    span = find(a, b, cluster)
    right = answer(size_bytes, span)
    return {**right, "time_s": right["time_s"] + span["latency_s"]}


# %% wrong span: returns the whole span
# says: must be a text
def transfer_time(size_bytes, a, b, cluster):
    span = find(a, b, cluster)
    return {**answer(size_bytes, span), "span": span}


# %% wrong span, bytes_per_s, time_s: servers of eight by heart
def transfer_time(size_bytes, a, b, cluster):
    if a == b or a // 8 != b // 8:
        return answer(size_bytes, find(a, b, cluster))
    return answer(size_bytes, cluster["spans"][1])


# %% wrong bytes_per_s, time_s: the slowest span on the way out
def transfer_time(size_bytes, a, b, cluster):
    span = find(a, b, cluster)
    spans = cluster["spans"][: cluster["spans"].index(span) + 1]
    slowest = min(spans, key=lambda s: answer(1, s)["bytes_per_s"])
    rate = answer(1, slowest)["bytes_per_s"]
    return {"span": span["name"], "bytes_per_s": rate, "time_s": span["latency_s"] + size_bytes / rate}


# %% wrong values: spans are remembered by the name of the cluster
_spans_by_name = {}


def link_between(a, b, cluster):
    for span in _spans_by_name.setdefault(cluster.get("name"), cluster["spans"]):
        if a // span["gpus"] == b // span["gpus"]:
            return span
    return None


def transfer_time(size_bytes, a, b, cluster):
    span = link_between(a, b, cluster)
    rate = (
        span["bandwidth"] / (8 if "bits" in span["unit"] else 1) / (2 if "both ways" in span["unit"] else 1)
    )
    return {"span": span["name"], "bytes_per_s": rate, "time_s": span["latency_s"] + size_bytes / rate}


# %% wrong bytes_per_s, time_s: the slowest link of all spans on the way
# says: must be
def link_between(a, b, cluster):
    return next(span for span in cluster["spans"] if a // span["gpus"] == b // span["gpus"])


def one_way(span):
    bandwidth = span["bandwidth"]
    if "bits" in span["unit"]:
        bandwidth = bandwidth / 8
    if "both ways" in span["unit"]:
        bandwidth = bandwidth / 2
    return bandwidth


def transfer_time(size_bytes, a, b, cluster):
    span = link_between(a, b, cluster)
    bandwidth = min(one_way(s) for s in cluster["spans"] if s["gpus"] <= span["gpus"])
    return {
        "span": span["name"],
        "bytes_per_s": bandwidth,
        "time_s": span["latency_s"] + size_bytes / bandwidth,
    }
