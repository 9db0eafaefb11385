# Answers to cluster_totals: right ones in other styles, and wrong ones with the part each must lose.

# %% setup
import math


def right(c):
    servers = c["servers_per_rack"] * c["racks_per_pod"] * c["pods"]
    gpus = servers * c["gpus_per_server"]
    return {
        "gpus": gpus,
        "memory_bytes": gpus * c["gpu_memory_bytes"],
        "flops_per_s": gpus * c["gpu_flops_per_s"],
        "power_w": servers * c["server_power_w"],
        "cross_pod_bytes_per_s": c["network_bits_per_s"] / c["oversubscription"] / 8,
    }


# %% right: a product of the four counts
def cluster_totals(cluster):
    gpus = math.prod(cluster[k] for k in ("gpus_per_server", "servers_per_rack", "racks_per_pod", "pods"))
    totals = {name: gpus * cluster[f"gpu_{name}"] for name in ("memory_bytes", "flops_per_s")}
    totals |= {"gpus": gpus, "power_w": gpus // cluster["gpus_per_server"] * cluster["server_power_w"]}
    totals["cross_pod_bytes_per_s"] = 0.125 * cluster["network_bits_per_s"] / cluster["oversubscription"]
    return totals


# %% right: from the outside in, with numpy; the pod's exit shared by its GPUs
def cluster_totals(cluster):
    import numpy as np

    counts = np.cumprod(
        [cluster[k] for k in ("pods", "racks_per_pod", "servers_per_rack", "gpus_per_server")]
    )
    _, _, servers, gpus = counts
    gpus_per_pod = gpus / cluster["pods"]
    pod_exit = gpus_per_pod * cluster["network_bits_per_s"] / 8 / cluster["oversubscription"]
    return {
        "gpus": gpus,
        "memory_bytes": gpus * cluster["gpu_memory_bytes"],
        "flops_per_s": gpus * cluster["gpu_flops_per_s"],
        "power_w": servers * cluster["server_power_w"],
        "cross_pod_bytes_per_s": pod_exit / gpus_per_pod,
    }


# %% wrong values: not written
# says: not written yet
def cluster_totals(cluster):
    raise NotImplementedError("exercise cluster_totals")


# %% wrong values: a list
# says: must return a dict
def cluster_totals(cluster):
    return list(right(cluster).values())


# %% wrong values: asks the library under an alias
# says: closed here
def cluster_totals(cluster):
    from course_lib.cost import cluster as c

    meta = c.meta_24k()
    return {"gpus": meta.num_devices, "memory_bytes": meta.memory_bytes}


# %% wrong gpus, memory_bytes, flops_per_s, power_w: one pod
# says: you count one pod
def cluster_totals(cluster):
    return right({**cluster, "pods": 1})


# %% wrong gpus, memory_bytes, flops_per_s, power_w: a rack is a server
# says: a rack for one server
def cluster_totals(cluster):
    return right({**cluster, "servers_per_rack": 1})


# %% wrong memory_bytes: GiB for GB
# says: 80 GB are 80e9 bytes
def cluster_totals(cluster):
    answer = right(cluster)
    return answer | {"memory_bytes": answer["gpus"] * cluster["gpu_memory_bytes"] / 1e9 * 2**30}


# %% wrong memory_bytes: in GiB
# says: bytes are asked
def cluster_totals(cluster):
    return right(cluster) | {"memory_bytes": right(cluster)["memory_bytes"] / 2**30}


# %% wrong flops_per_s: sparse
# says: the sparse peak is used
def cluster_totals(cluster):
    return right(cluster) | {"flops_per_s": right(cluster)["gpus"] * cluster["gpu_sparse_flops_per_s"]}


# %% wrong power_w: GPUs only
# says: only the GPUs draw power
def cluster_totals(cluster):
    return right(cluster) | {"power_w": right(cluster)["gpus"] * cluster["gpu_power_w"]}


# %% wrong cross_pod_bytes_per_s: bits
# says: bits are taken for bytes
def cluster_totals(cluster):
    return right(cluster) | {
        "cross_pod_bytes_per_s": cluster["network_bits_per_s"] / cluster["oversubscription"]
    }


# %% wrong cross_pod_bytes_per_s: no oversubscription
# says: oversubscription is left out
def cluster_totals(cluster):
    return right({**cluster, "oversubscription": 1})


# %% wrong gpus, memory_bytes, flops_per_s, power_w, cross_pod_bytes_per_s: Meta by heart
def cluster_totals(cluster):
    return {
        "gpus": 24_576,
        "memory_bytes": 1.96608e15,
        "flops_per_s": 2.4305664e19,
        "power_w": 31_334_400.0,
        "cross_pod_bytes_per_s": 50e9 / 7,
    }


# %% wrong flops_per_s: half of the sparse peak
def cluster_totals(cluster):
    totals = right(cluster)
    return totals | {"flops_per_s": totals["gpus"] * cluster["gpu_sparse_flops_per_s"] / 2}


# %% wrong values: totals are remembered by the id of the dict, changed or reused dicts get old ones
# says: must give the same result in every call
_totals_by_id = {}


def cluster_totals(cluster):
    if id(cluster) not in _totals_by_id:
        servers = cluster["servers_per_rack"] * cluster["racks_per_pod"] * cluster["pods"]
        gpus = servers * cluster["gpus_per_server"]
        _totals_by_id[id(cluster)] = {
            "gpus": gpus,
            "memory_bytes": gpus * cluster["gpu_memory_bytes"],
            "flops_per_s": gpus * cluster["gpu_flops_per_s"],
            "power_w": servers * cluster["server_power_w"],
            "cross_pod_bytes_per_s": cluster["network_bits_per_s"] / 8 / cluster["oversubscription"],
        }
    return _totals_by_id[id(cluster)]


# %% wrong values: the counts are multiplied up in the caller's dict, a second call counts a larger cluster
# says: argument 'cluster' must stay as it was
def cluster_totals(cluster):
    gpus = cluster["gpus_per_server"]
    for key in ("servers_per_rack", "racks_per_pod", "pods"):
        cluster[key] *= gpus
        gpus = cluster[key]
    servers = gpus // cluster["gpus_per_server"]
    return {
        "gpus": gpus,
        "memory_bytes": gpus * cluster["gpu_memory_bytes"],
        "flops_per_s": gpus * cluster["gpu_flops_per_s"],
        "power_w": servers * cluster["server_power_w"],
        "cross_pod_bytes_per_s": cluster["network_bits_per_s"] / 8 / cluster["oversubscription"],
    }


# %% wrong cross_pod_bytes_per_s: whole-number oversubscription
def cluster_totals(cluster):
    # Wrong: "oversubscription (7 means 1:7)", "the others within 0.1%": 1:1.5 or 1:2.5 is cut to 1:1 or 1:2.
    servers = cluster["servers_per_rack"] * cluster["racks_per_pod"] * cluster["pods"]
    gpus = servers * cluster["gpus_per_server"]
    return {
        "gpus": gpus,
        "memory_bytes": gpus * cluster["gpu_memory_bytes"],
        "flops_per_s": gpus * cluster["gpu_flops_per_s"],
        "power_w": servers * cluster["server_power_w"],
        "cross_pod_bytes_per_s": cluster["network_bits_per_s"] / 8 / int(cluster["oversubscription"]),
    }


# %% wrong memory_bytes: whole gigabytes a gpu
def cluster_totals(cluster):
    # Wrong: "memory_bytes ... within 0.1%, in SI units". A GPU of 80 GiB = 85.9e9 bytes counts as 85e9.
    servers = cluster["servers_per_rack"] * cluster["racks_per_pod"] * cluster["pods"]
    gpus = servers * cluster["gpus_per_server"]
    return {
        "gpus": gpus,
        "memory_bytes": gpus * int(cluster["gpu_memory_bytes"] / 1e9) * 10**9,
        "flops_per_s": gpus * cluster["gpu_flops_per_s"],
        "power_w": servers * cluster["server_power_w"],
        "cross_pod_bytes_per_s": cluster["network_bits_per_s"] / 8 / cluster["oversubscription"],
    }


# %% wrong memory_bytes, flops_per_s, power_w, cross_pod_bytes_per_s: remembered by the number of gpus
_remembered = {}


def cluster_totals(cluster):
    # Wrong: "Meta's 24,576 GPUs and clusters you have not seen": a second cluster of as many GPUs, but with
    # other GPUs, servers or cards, gets the totals of the first.
    servers = cluster["servers_per_rack"] * cluster["racks_per_pod"] * cluster["pods"]
    gpus = servers * cluster["gpus_per_server"]
    if gpus not in _remembered:
        _remembered[gpus] = {
            "gpus": gpus,
            "memory_bytes": gpus * cluster["gpu_memory_bytes"],
            "flops_per_s": gpus * cluster["gpu_flops_per_s"],
            "power_w": servers * cluster["server_power_w"],
            "cross_pod_bytes_per_s": cluster["network_bits_per_s"] / 8 / cluster["oversubscription"],
        }
    return dict(_remembered[gpus])
