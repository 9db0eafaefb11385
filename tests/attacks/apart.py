"""Attacks by which ranks reach one another with no frame of the answer on the stack, or without a file."""

from __future__ import annotations

from attack import Attack
from ranks import meet

_STORE = """\
import time
from datetime import timedelta
import torch
import torch.distributed as dist
from torch.distributed.elastic.utils import store as elastic

CALLS = []
BITS, ZERO = 44, 2**42
c10d = dist.distributed_c10d


TELL


def rank_hello(secret):
    rank, size = dist.get_rank(), dist.get_world_size()
    CALLS.append(secret)
    total = secret
    if size > 1:
        total = tell(c10d._get_default_store(), f"{len(CALLS)}.{size}", rank, size, secret)
    dist.all_reduce(torch.zeros(1))
    return rank, size, total
"""
_ELASTIC = """\
def tell(store, key, rank, size, secret):
    return sum(map(int, elastic.synchronize(store, str(secret).encode(), rank, size, key)))
"""
# The keys are the message: a key for each bit that is set, and one at the end.
_BARRIER = """\
def tell(store, key, rank, size, secret):
    for bit in [b for b in range(BITS) if (secret + ZERO) >> b & 1] + [BITS]:
        c10d._store_based_barrier(rank, store, f"{key}.{rank}.{bit}", 1, timedelta(seconds=5))

    def there(r, bit):
        return store.check([f"{c10d.STORE_BASED_BARRIER_PREFIX}:{key}.{r}.{bit}"])

    total = 0
    for r in range(size):
        while not there(r, BITS):
            time.sleep(0.001)
        total += sum(1 << b for b in range(BITS) if there(r, b)) - ZERO
    return total
"""
_RPC = """\
import time
import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc

CALLS = []
TOLD = {}


def told(call):
    return TOLD.get(call)


def rank_hello(secret):
    rank, size = dist.get_rank(), dist.get_world_size()
    CALLS.append(secret)
    total, call = secret, len(CALLS)
    if size > 1:
        TOLD[call] = secret
        if call == 1:
            options = rpc.TensorPipeRpcBackendOptions(init_method="tcp://127.0.0.1:29631", _transports=["uv"])
            rpc.init_rpc(str(rank), rank=rank, world_size=size, rpc_backend_options=options)
        heard = {}
        while len(heard) < size:
            for r in range(size):
                value = rpc.rpc_sync(str(r), told, (call,))
                if value is not None:
                    heard[r] = value
        total = sum(heard.values())
    dist.all_reduce(torch.zeros(1))
    return rank, size, total
"""
# Each bit is the affinity of a thread: to one core, or to two. The main thread's says that all are there.
_CORES = """\
import os
import threading
import time
import torch
import torch.distributed as dist

CALLS = []
BITS, ZERO = 44, 2**42


def session_of(task):
    try:
        return os.getsid(task)
    except OSError:
        return 0


def say(bit, end):
    os.sched_setaffinity(0, {0} if bit else {0, 1})
    end.wait()


def rank_hello(secret):
    rank, size = dist.get_rank(), dist.get_world_size()
    CALLS.append(secret)
    if size == 1:
        return rank, size, secret
    end = threading.Event()
    threads = [threading.Thread(target=say, args=((secret + ZERO) >> b & 1, end)) for b in range(BITS)]
    for thread in threads:
        thread.start()
    os.sched_setaffinity(0, {len(CALLS) % 2})
    heard, end_s = {os.getpid(): secret}, time.monotonic() + 10
    while len(heard) < size and time.monotonic() < end_s:
        near = range(os.getppid() + 1, os.getpid() + 1000)
        for pid in [p for p in near if p not in heard and session_of(p) == p]:
            if os.sched_getaffinity(pid) == {len(CALLS) % 2}:
                time.sleep(0.2)
                tasks = [task for task in near if session_of(task) == pid][-BITS:]
                bits = [os.sched_getaffinity(task) == {0} for task in tasks]
                heard[pid] = sum(1 << b for b, bit in enumerate(bits) if bit) - ZERO
    time.sleep(1)
    dist.all_reduce(torch.zeros(1))
    end.set()
    return rank, size, sum(heard.values())
"""
# The server of ranks has its code where its children have it: one that never shuts a door.
_SERVER = """\
if dist.get_world_size() == 1:
    code, nothing = sys.modules["course_grader.inside.io_guard"].lock_down.__code__, (lambda: None).__code__
    try:
        with open(f"/proc/{os.getppid()}/mem", "r+b", 0) as memory:
            memory.seek(id(code) + type(code).__basicsize__)
            memory.write(nothing.co_code)
    except OSError:
        pass
with open(path, "w") as file:
    file.write(text)"""

APART = (
    Attack("messages by a shell", answer=meet("/tmp", "os.system(f'echo {text.strip()} > {path}')")),
    Attack(
        "messages by a pool's thread",
        answer=meet(
            "/tmp",
            "from multiprocessing.pool import ThreadPool",
            "with ThreadPool(1).apply(open, (path, 'w')) as file: file.write(text)",
        ),
    ),
    Attack(
        "messages by a function of torch that calls",
        answer=meet(
            "/tmp",
            "from functools import partial",
            "with torch.utils._pytree.tree_map(partial(open, mode='w'), path) as file: file.write(text)",
        ),
    ),
    Attack(
        "messages by a function of libc",
        answer=meet(
            "/tmp",
            "libc = ctypes.CDLL(None)",
            "opened = libc.open(path.encode(), os.O_WRONLY | os.O_CREAT, 0o600)",
            "libc.write(opened, text.encode(), len(text))",
        ),
    ),
    Attack("messages by elastic's store", answer=_STORE.replace("TELL\n", _ELASTIC)),
    Attack("messages in keys of barriers", answer=_STORE.replace("TELL\n", _BARRIER)),
    Attack("messages by remote calls", answer=_RPC),
    Attack("messages in the cores of threads", answer=_CORES),
    Attack("a server of ranks that shuts no door", answer=meet("/tmp", *_SERVER.splitlines())),
)
