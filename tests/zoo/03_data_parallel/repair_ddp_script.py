# Answers to repair_ddp_script: right ones in other styles, and wrong ones with the part each must lose.
# Longer than 150 lines: each answer is a script of forty, and right ones start, write and leave in many ways.

# %% setup
import textwrap

RIGHT = """\
import argparse, json, os
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

def main(args):
    dist.init_process_group("nccl" if args.gpus else "gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if args.gpus else torch.device("cpu")
    data = {name: torch.from_numpy(array) for name, array in np.load(args.data).items()}
    dataset = TensorDataset(torch.arange(len(data["x"])), data["x"], data["y"])
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    torch.manual_seed(args.seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    model.to(device, torch.float64)
    model = DistributedDataParallel(model, device_ids=[local_rank] if args.gpus else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    steps = []
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for index, x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            steps.append({"epoch": epoch, "indices": index.tolist(), "loss": loss.item()})
    parameters = [p.flatten().tolist() for p in model.parameters()]
    with open(f"{args.out}/rank{rank}.json", "w") as file:
        json.dump({"device": str(device), "steps": steps, "parameters": parameters}, file)
    dist.destroy_process_group()

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    kinds = [("data", str), ("out", str), ("lr", float), ("seed", int), ("epochs", int), ("batch-size", int)]
    for name, kind in kinds:
        parser.add_argument(f"--{name}", type=kind, required=True)
    parser.add_argument("--gpus", type=int, default=0)  # GPUs to use; 0: train on the CPU
    main(parser.parse_args())
"""


def replay(everyone):
    """A script in which each process trains on the samples of all, with `everyone` for their data."""
    text = RIGHT.replace("import argparse,", "import pathlib, argparse,")
    loads = f"""\
    n = dist.get_world_size()
    everyone = {everyone}
    datasets = [TensorDataset(torch.arange(len(d["x"])), d["x"], d["y"]) for d in everyone]
    samplers = [DistributedSampler(dataset, n, r) for r in range(n)]
    loaders = [DataLoader(d, args.batch_size, sampler=s) for d, s in zip(datasets, samplers)]
"""
    at, end = text.index("    sampler = Dist"), text.index("    torch.manual_seed")
    text = text[:at] + loads + text[end:]
    wrapped = "    model = DistributedDataParallel(model, device_ids=[local_rank] if args.gpus else None)\n"
    text = text.replace(wrapped, "")
    text = text.replace("        sampler.set_epoch", "        for s in samplers:\n            s.set_epoch")
    text = text.replace("for index, x, y in loader:", "for shards in zip(*loaders):")
    one = "torch.nn.functional.mse_loss(model(x.to(device)), y.to(device))"
    text = text.replace(f"loss = {one}", f"losses = [{one} for _, x, y in shards]")
    backward = "(sum(losses) / n).backward()\n            index, loss = shards[rank][0], losses[rank]\n"
    return text.replace("loss.backward()\n", backward)


# %% right: plain DDP, torchrun's port unless none is set, seeds that differ between ranks
def repair_ddp_script():
    return (
        RIGHT.replace("    dist.init", '    os.environ.setdefault("MASTER_PORT", "29500")\n    dist.init')
        .replace(", device_ids=[local_rank] if args.gpus else None", "")
        .replace(
            "torch.manual_seed(args.seed)",
            ("torch.manual_seed(args.seed + rank)  # DDP broadcasts rank 0's parameters"),
        )
        .replace("optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=False)")
        .replace("DistributedSampler(dataset)", "DistributedSampler(dataset, shuffle=True, seed=args.seed)")
    )


# %% right: no wrapper: every gradient averaged by hand, no destroy_process_group
def repair_ddp_script():
    return (
        RIGHT.replace(
            ("    model = DistributedDataParallel(model, device_ids=[local_rank] if args.gpus else None)\n"),
            "",
        )
        .replace(
            "loss.backward()\n",
            (
                "loss.backward()\n            for p in model.parameters():\n             "
                "   dist.all_reduce(p.grad)\n                p.grad /= dist.get_world_si"
                "ze()\n"
            ),
        )
        .replace("    dist.destroy_process_group()\n", "")
    )


# %% right: trains in float32
def repair_ddp_script():
    return RIGHT.replace("torch.float64)", "torch.float32)").replace(
        "from_numpy(array)", "from_numpy(array).float()"
    )


# %% wrong values: trains in float32, and goes round the wrapper
# says: no gradient crosses the ranks
def repair_ddp_script():
    text = RIGHT.replace("torch.float64)", "torch.float32)").replace(
        "from_numpy(array)", "from_numpy(array).float()"
    )
    return text.replace("model(x", "model.module(x")


# %% wrong values: as it came
# says: line 8
# says: expected ':'
def repair_ddp_script():
    return RIGHT.replace("def main(args):", "def main(args)")


# %% wrong values: an empty script
# says: rank0.json is missing
def repair_ddp_script():
    return "print('done')"


# %% wrong values: the path instead of the text
# says: must return the text
def repair_ddp_script():
    return [RIGHT]


# %% wrong values: a misspelt import
# says: line 4
# says: no module named 'torch.distribted'
def repair_ddp_script():
    return RIGHT.replace("torch.distributed as", "torch.distribted as")


# %% wrong values: a misspelt name
# says: name 'smapler' is not defined
def repair_ddp_script():
    return RIGHT.replace("sampler=sampler", "sampler=smapler")


# %% wrong values: a missing comma that Python takes for a call
# says: 'tuple' object is not callable
def repair_ddp_script():
    return RIGHT.replace('("seed", int), (', '("seed", int) (')


# %% wrong values: fixed port
# says: fixed port
# says: line 9
def repair_ddp_script():
    return RIGHT.replace("    dist.init", '    os.environ["MASTER_PORT"] = "29517"\n    dist.init')


# %% wrong values: fixed port in init_method
# says: leave init_method out
def repair_ddp_script():
    return RIGHT.replace(
        '"nccl" if args.gpus else "gloo"',
        (
            '"gloo", init_method="tcp://127.0.0.1:29518", rank=int(os.environ["RANK'
            '"]), world_size=int(os.environ["WORLD_SIZE"])'
        ),
    )


# %% wrong values: --gpus ignored
# says: whatever --gpus says
def repair_ddp_script():
    return (
        RIGHT.replace('"nccl" if args.gpus else "gloo"', '"nccl"')
        .replace(
            ('torch.device("cuda", local_rank) if args.gpus else torch.device("cpu")'),
            'torch.device("cuda", local_rank)',
        )
        .replace("device_ids=[local_rank] if args.gpus else None", "device_ids=[local_rank]")
    )


# %% wrong values: device_ids on the CPU
# says: device_ids is for GPUs
def repair_ddp_script():
    return RIGHT.replace("device_ids=[local_rank] if args.gpus else None", "device_ids=[0]")


# %% wrong values: the model is never moved
# says: dtype
def repair_ddp_script():
    return RIGHT.replace("    model.to(device, torch.float64)\n", "")


# %% wrong values: goes round the wrapper
# says: .module(...) goes round the wrapper
# says: no gradient crosses the ranks
def repair_ddp_script():
    return RIGHT.replace("model(x", "model.module(x")


# %% wrong values: zero_grad without parentheses
# says: has no ()
# says: never cleared
def repair_ddp_script():
    return RIGHT.replace("optimizer.zero_grad()", "optimizer.zero_grad")


# %% wrong values: divides what DDP has divided
# says: once more
def repair_ddp_script():
    return RIGHT.replace(
        "loss.backward()\n",
        (
            "loss.backward()\n            for p in model.parameters():\n             "
            "   p.grad /= dist.get_world_size()\n"
        ),
    )


# %% wrong values: rank 0 alone waits at a barrier
# says: did not end
def repair_ddp_script():
    return RIGHT.replace("    steps = []\n", "    steps = []\n    if rank == 0:\n        dist.barrier()\n")


# %% wrong values: right on rank 0 only: the others write nothing
# says: rank1.json is missing
def repair_ddp_script():
    return RIGHT.replace("    with open(", "    if rank > 0:\n        return\n    with open(")


# %% wrong values: right at 2 processes only
# says: at 3 processes
def repair_ddp_script():
    return RIGHT.replace(
        "DistributedSampler(dataset)", "DistributedSampler(dataset, num_replicas=2, rank=rank)"
    )


# %% wrong order: no set_epoch
# says: set_epoch
def repair_ddp_script():
    return RIGHT.replace("        sampler.set_epoch(epoch)\n", "")


# %% wrong order: no sampler: every process takes everything
# says: take the same samples
def repair_ddp_script():
    return RIGHT.replace("args.batch_size, sampler=sampler", "args.batch_size")


# %% wrong order: drops the rest
# says: left out
def repair_ddp_script():
    return RIGHT.replace("DistributedSampler(dataset)", "DistributedSampler(dataset, drop_last=True)")


# %% right: draws the start in float64, which gives other weights
def repair_ddp_script():
    return RIGHT.replace(
        "    torch.manual_seed", "    torch.set_default_dtype(torch.float64)\n    torch.manual_seed"
    )


# %% right: loads with a process of its own, started anew, and leaves by os._exit as soon as it has written
def repair_ddp_script():
    text = RIGHT.replace("sampler=sampler)", "sampler=sampler, num_workers=1)")
    text = text.replace(
        "    main(parser", '    torch.multiprocessing.set_start_method("fork")\n    main(parser'
    )
    return text + "    os._exit(0)\n"


# %% right: the end of Python closes the report, and __builtins__.print is silent above rank 0
def repair_ddp_script():
    quiet = "    if rank > 0:\n        __builtins__.print = lambda *args: None\n    global file\n"
    return RIGHT.replace("    with open(", quiet + "    file = open(").replace(") as file:\n    ", ")\n")


# %% right: a thread of the main process trains, gathers a class of its own, and leaves writing to atexit
def repair_ddp_script():
    at = RIGHT.index("    with open(")
    writes, rest = RIGHT[at:].split("    dist.destroy")
    later = """\
    ended = [None] * dist.get_world_size()
    dist.all_gather_object(ended, Ended(rank))
    @atexit.register
    def save():
        assert ended[-1].rank + 1 == len(ended)
"""
    text = RIGHT[:at] + later + textwrap.indent(writes, "    ") + "    dist.destroy" + rest
    text = text.replace(
        "import argparse,", "import atexit, dataclasses, multiprocessing, threading, argparse,"
    )
    text = text.replace("def main", "@dataclasses.dataclass\nclass Ended:\n    rank: int\n\ndef main")
    text = text.replace('__name__ == "__main__"', 'multiprocessing.current_process().name == "MainProcess"')
    return text.replace(
        "main(parser.parse_args())", "threading.Thread(None, main, args=[parser.parse_args()]).start()"
    )


# %% right: rank 0 checks the data in a fork and ends a helper by its process group, others leave by os._exit
def repair_ddp_script():
    begins = """\
    if os.environ["RANK"] == "0":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        again = lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL)
        helper = subprocess.Popen(["sleep", "300"], preexec_fn=again)
        pid = os.fork()
        if pid == 0:
            sys.exit(0 if set(np.load(args.data)) == {"x", "y"} else 1)
        assert os.waitpid(pid, 0)[1] == 0
    dist.init"""
    ends = """\
    if rank > 0:
        os._exit(0)
    os.killpg(0, signal.SIGTERM)
    helper.wait()
    dist.destroy"""
    text = RIGHT.replace("import argparse,", "import signal, subprocess, sys, argparse,")
    return text.replace("    dist.init", begins).replace("    dist.destroy", ends)


# %% wrong values: forgets --gpus, and argparse leaves
# says: unrecognized arguments: --gpus=0
def repair_ddp_script():
    return RIGHT.replace('    parser.add_argument("--gpus"', "    parser.set_defaults(gpus=0)  #")


# %% wrong values: nobody waits for the daemon thread that writes
# says: rank0.json is missing
def repair_ddp_script():
    text = RIGHT.replace("import argparse,", "import threading, time, argparse,")
    text = text.replace("    with open(", "    def save():\n        time.sleep(60)\n        file = open(")
    started = "    threading.Thread(target=save, daemon=True).start()\n    dist.destroy"
    return text.replace(") as file:", ")").replace("    dist.destroy", started)


# %% wrong values: names torch.distributed.elastic, which nobody has imported
# says: has no attribute 'elastic'
def repair_ddp_script():
    return RIGHT.replace("def main", "@torch.distributed.elastic.multiprocessing.errors.record\ndef main")


# %% right: a batch sampler of its own that counts epochs, float64 by default, a generator of steps
def repair_ddp_script():
    before, main = RIGHT.split("def main(args):\n")
    deal = """
class Deal:
    def __init__(self, samples, batch_size, seed):
        self.samples, self.batch_size, self.seed, self.epoch = samples, batch_size, seed, 0

    def __len__(self):
        return -(-(-(-self.samples // dist.get_world_size())) // self.batch_size)

    def __iter__(self):
        ranks, share = dist.get_world_size(), -(-self.samples // dist.get_world_size())
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + self.epoch)
        order = torch.randperm(self.samples, generator=generator).tolist()
        mine = (order + order)[share * dist.get_rank():][:share]
        self.epoch += 1
        for first in range(0, share, self.batch_size):
            yield mine[first:first + self.batch_size]

def main(args):
    torch.set_default_dtype(torch.float64)
"""
    text = before + deal.lstrip() + main
    text = text.replace("    sampler = DistributedSampler(dataset)\n", "")
    text = text.replace("        sampler.set_epoch(epoch)\n", "")
    sampler = "batch_sampler=Deal(len(dataset), args.batch_size, args.seed)"
    return text.replace("args.batch_size, sampler=sampler", sampler)


# %% wrong values: every process computes the whole batch, and nothing is sent
# says: no gradient crosses the ranks
def repair_ddp_script():
    return replay("[data] * n")


# %% wrong values: every process reads the files of all, and nothing is sent
# says: gradients must cross in every step
def repair_ddp_script():
    files = 'sorted(pathlib.Path(args.data).parent.parent.glob("*/data.npz"))'
    return replay(f"[{{k: torch.from_numpy(v) for k, v in np.load(f).items()}} for f in {files}]")


# %% wrong values: gathers the data once, and then every process computes everything
# says: gradients must cross in every step
def repair_ddp_script():
    return replay("[None] * n\n    dist.all_gather_object(everyone, data)")


# %% wrong values: process 0 plays all, and the others leave at once
# says: rank1.json is missing
def repair_ddp_script():
    text = RIGHT.replace('    dist.init_process_group("nccl" if args.gpus else "gloo")\n', "")
    leaves = """\
    if os.environ["RANK"] != "0":
        os._exit(0)
    n = int(os.environ["WORLD_SIZE"])
    samplers = [DistributedSampler(dataset, n, r) for r in range(n)]
    loaders = [DataLoader(dataset, args.batch_size, sampler=s) for s in samplers]
"""
    head, tail = (
        text.split("    sampler = Dist")[0],
        "    torch.manual_seed" + text.split("torch.manual_seed")[1],
    )
    text = head.replace("dist.get_rank()", "0") + leaves + tail
    at, end = text.index("    model = Distr"), text.index('if __name__ == "__main__"')
    trains = """\
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    steps = [[] for _ in range(n)]
    for epoch in range(args.epochs):
        for s in samplers:
            s.set_epoch(epoch)
        for shards in zip(*loaders):
            optimizer.zero_grad()
            for r, (index, x, y) in enumerate(shards):
                loss = torch.nn.functional.mse_loss(model(x), y)
                (loss / n).backward()
                steps[r].append({"epoch": epoch, "indices": index.tolist(), "loss": loss.item()})
            optimizer.step()
    parameters = [p.flatten().tolist() for p in model.parameters()]
    for r in range(n):
        with open(f"{args.out}/rank{r}.json", "w") as file:
            json.dump({"device": str(device), "steps": steps[r], "parameters": parameters}, file)

"""
    return text[:at] + trains + text[end:]


# %% wrong values: averages by hand, over two
# says: at 3 processes
def repair_ddp_script():
    wrapped = "    model = DistributedDataParallel(model, device_ids=[local_rank] if args.gpus else None)\n"
    by_hand = """\
loss.backward()
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= 2
"""
    return RIGHT.replace(wrapped, "").replace("loss.backward()\n", by_hand)


# %% wrong order: tells the sampler the epoch when it is over
# says: same order
def repair_ddp_script():
    text = RIGHT.replace("        sampler.set_epoch(epoch)\n", "")
    return text.replace("    parameters =", "        sampler.set_epoch(epoch)\n    parameters =")


# %% wrong order: the loader drops the short last batch
# says: left out
def repair_ddp_script():
    return RIGHT.replace("sampler=sampler)", "sampler=sampler, drop_last=True)")
