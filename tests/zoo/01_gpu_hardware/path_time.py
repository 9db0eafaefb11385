# Answers to path_time: right ones in other styles, and wrong ones with the part each must lose.

# %% setup
# from: in parts
PER_BYTE = {"bytes/s": 1, "bytes/s both ways": 2, "bits/s": 8, "bits/s both ways": 16}


def path(a, b, cluster):
    n = cluster["gpus_per_server"]
    if a // n == b // n:
        return [cluster["inside"]]
    return [cluster["network"]] if a % n == b % n else [cluster["inside"], cluster["network"]]


# %% right: in parts
def path_time(size_bytes, piece_bytes, a, b, cluster):
    links = path(a, b, cluster)
    free_s = [0.0] * len(links)
    for start in range(0, size_bytes, piece_bytes):
        piece = min(piece_bytes, size_bytes - start)
        at_s = 0.0
        for i, link in enumerate(links):
            rate = link["bandwidth"] / PER_BYTE[link["unit"]]
            free_s[i] = max(at_s, free_s[i]) + piece / rate
            at_s = free_s[i] + link["latency_s"]
    return at_s


# %% right: link after link, a list of times at which pieces lie there
def path_time(size_bytes, piece_bytes, a, b, cluster):
    whole, rest = divmod(size_bytes, piece_bytes)
    sizes = [piece_bytes] * whole + [rest] * (rest > 0)
    ready = [0] * len(sizes)
    for link in path(a, b, cluster):
        seconds_per_byte = PER_BYTE[link["unit"]] / link["bandwidth"]
        now, left = 0, []
        for size, ready_s in zip(sizes, ready):
            now = max(now, ready_s) + size * seconds_per_byte
            left.append(now + link["latency_s"])
        ready = left
    return ready[-1]


# %% wrong one_link, two_links, pieces: bits for bytes
# says: bits are taken for bytes
# change: PER_BYTE[link["unit"]] -> (2 if "both" in link["unit"] else 1)
# %% wrong one_link, two_links, pieces: both ways
# says: both ways is taken for one way
# change: PER_BYTE[link["unit"]] -> (8 if "bits" in link["unit"] else 1)
# %% wrong one_link, two_links, pieces: no latency
# says: the latency is left out
# change: + link["latency_s"] -> + 0
# %% wrong one_link, two_links, pieces: there and back
# says: there and back
# change: link["latency_s"] -> 2 * link["latency_s"]
# %% wrong two_links, pieces: neighbours by number are taken for one server
# says: 7 and 8 are in different ones
# change: links = path(a, b, cluster) -> links = [cluster["inside"]] if abs(a - b) < cluster["gpus_per_server"] else path(a, b, cluster)
# %% wrong two_links, pieces: the network alone
# says: takes the network alone
# change: links = path(a, b, cluster) -> links = path(a, b, cluster)[-1:]
# %% wrong pieces: the second link waits for the whole message
# says: pieces go on as they arrive
# change: links = path(a, b, cluster) -> links = path(a, b, cluster); piece_bytes = size_bytes
# %% wrong pieces: the last piece counts as a whole one
# change: min(piece_bytes, size_bytes - start) -> piece_bytes if len(links) > 1 and piece_bytes < size_bytes else min(piece_bytes, size_bytes - start)
# %% wrong one_link, pieces: latency keeps a link
# says: latency keeps a link busy
# change: at_s = free_s[i] + link["latency_s"] -> free_s[i] = at_s = free_s[i] + link["latency_s"]
# %% wrong values: the library's clusters, by way of the grader's
# says: course_lib.cost is closed here
# change: links = path(a, b, cluster) -> from course_grader.inside.plain_clusters import Cluster; links = path(a, b, cluster)
# %% wrong two_links, pieces: size over the slower bandwidth, and latencies
# says: the slower link alone counts
def path_time(size_bytes, piece_bytes, a, b, cluster):
    links = path(a, b, cluster)
    slowest = min(link["bandwidth"] / PER_BYTE[link["unit"]] for link in links)
    return size_bytes / slowest + sum(link["latency_s"] for link in links)


# %% wrong one_link, two_links, pieces: the unit of the link inside is read for both
# change: PER_BYTE[link["unit"]] -> PER_BYTE[cluster["inside"]["unit"]]
# %% wrong two_links, pieces: the unit of the first link is read for both
# change: PER_BYTE[link["unit"]] -> PER_BYTE[links[0]["unit"]]
# %% wrong one_link, two_links, pieces: servers of eight by heart
# change: links = path(a, b, cluster) -> links = path(a, b, {**cluster, "gpus_per_server": 8})
# %% wrong pieces: every piece takes both links before the next one starts
# change: at_s = 0.0 -> at_s = free_s[-1] if len(links) > 1 else 0.0
# %% wrong one_link, two_links, pieces: microseconds
# change: return at_s -> return 1e6 * at_s
