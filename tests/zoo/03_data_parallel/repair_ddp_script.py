# Answers to repair_ddp_script: right ones in other styles, and wrong ones with the part each must lose.
# Longer than 150 lines: right scripts start, write and leave in many ways, and each is dozens of lines.

# %% setup
import textwrap

WRAPPED = "    model = DistributedDataParallel(model, device_ids=[local_rank] if args.gpus else None)\n"
AVERAGES = "loss.backward()\n" + 12 * " " + "for p in model.parameters(): dist.all_reduce(p.grad); p.grad /= "


def replay(text, everyone):
    """The script in which each process trains on the samples of all, with `everyone` for their data."""
    text = text.replace("import argparse,", "import pathlib, argparse,")
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


def from_a_thread(text):
    at = text.index("    with open(")
    writes, rest = text[at:].split("    dist.destroy")
    later = """\
    ended = [None] * dist.get_world_size()
    dist.all_gather_object(ended, Ended(rank))
    @atexit.register
    def save():
        assert ended[-1].rank + 1 == len(ended)
"""
    text = text[:at] + later + textwrap.indent(writes, "    ") + "    dist.destroy" + rest
    text = text.replace(
        "import argparse,", "import atexit, dataclasses, multiprocessing, threading, argparse,"
    )
    text = text.replace("def main", "@dataclasses.dataclass\nclass Ended:\n    rank: int\n\ndef main")
    text = text.replace('__name__ == "__main__"', 'multiprocessing.current_process().name == "MainProcess"')
    return text.replace(
        "main(parser.parse_args())", "threading.Thread(None, main, args=[parser.parse_args()]).start()"
    )


def with_a_helper(text):
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
    text = text.replace("import argparse,", "import signal, subprocess, sys, argparse,")
    return text.replace("    dist.init", begins).replace("    dist.destroy", ends)


# %% right: plain DDP, a port where none is set, seeds that differ between ranks
# change: return text -> return text.replace("    dist.init", "    os.environ.setdefault('MASTER_PORT', '29500')\n    dist.init").replace(", device_ids=[local_rank] if args.gpus else None", "").replace("args.seed)", "args.seed + rank)", 1)
# %% right: no wrapper: every gradient averaged by hand, no destroy_process_group
# change: return text -> return text.replace(WRAPPED, "").replace("loss.backward()\n", AVERAGES + "dist.get_world_size()\n").replace("    dist.destroy_process_group()\n", "")
# %% right: trains in float32
# change: return text -> return text.replace("torch.float64)", "torch.float32)").replace("from_numpy(array)", "from_numpy(array).float()")
# %% right: draws the start in float64, which gives other weights
# change: return text -> return text.replace("    torch.manual_seed", "    torch.set_default_dtype(torch.float64)\n    torch.manual_seed")
# %% right: loads with a process of its own, started anew, and leaves by os._exit as soon as it has written
# change: return text -> return text.replace("sampler=sampler)", "sampler=sampler, num_workers=1)").replace("    main(parser", "    torch.multiprocessing.set_start_method('fork')\n    main(parser") + "    os._exit(0)\n"
# %% right: the end of Python closes the report, and __builtins__.print is silent above rank 0
# change: return text -> return text.replace("    with open(", "    if rank > 0:\n        __builtins__.print = lambda *args: None\n    global file\n    file = open(").replace(") as file:\n    ", ")\n")
# %% right: a thread of the main process trains, gathers a class of its own, and leaves writing to atexit
# change: return text -> return from_a_thread(text)
# %% right: rank 0 checks the data in a fork and ends a helper by its process group, others leave by os._exit
# change: return text -> return with_a_helper(text)
# %% wrong values: the colon is still missing
# says: line 8
# says: expected ':'
# change: return text -> return text.replace("def main(args):", "def main(args)")
# %% wrong values: an empty script
# says: rank0.json is missing
# change: return text -> return "print('done')"
# %% wrong values: the path instead of the text
# says: must return the text
# change: return text -> return [text]
# %% wrong values: a misspelt import
# says: line 4
# says: no module named 'torch.distribted'
# change: return text -> return text.replace("torch.distributed as", "torch.distribted as")
# %% wrong values: a missing comma that Python takes for a call
# says: 'tuple' object is not callable
# change: return text -> return text.replace('("seed", int), (', '("seed", int) (')
# %% wrong values: fixed port
# says: fixed port
# says: line 9
# change: return text -> return text.replace("    dist.init", '    os.environ["MASTER_PORT"] = "29517"\n    dist.init')
# %% wrong values: fixed port in init_method
# says: leave init_method out
# change: return text -> return text.replace('"nccl" if args.gpus else "gloo"', '"gloo", init_method="tcp://127.0.0.1:29518", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"])')
# %% wrong values: --gpus ignored
# says: whatever --gpus says
# change: return text -> return text.replace('"nccl" if args.gpus else "gloo"', '"nccl"').replace(' if args.gpus else torch.device("cpu")', "").replace(" if args.gpus else None", "")
# %% wrong values: forgets --gpus, and argparse leaves
# says: unrecognized arguments: --gpus=0
# change: return text -> return text.replace('parser.add_argument("--gpus"', "parser.set_defaults(gpus=0)  #")
# %% wrong values: device_ids on the CPU
# says: device_ids is for GPUs
# change: return text -> return text.replace("device_ids=[local_rank] if args.gpus else None", "device_ids=[0]")
# %% wrong values: the model is never moved
# says: dtype
# change: return text -> return text.replace("    model.to(device, torch.float64)\n", "")
# %% wrong values: goes round the wrapper
# says: .module(...) goes round the wrapper
# says: no gradient crosses the ranks
# change: return text -> return text.replace("model(x", "model.module(x")
# %% wrong values: zero_grad without parentheses
# says: has no ()
# says: never cleared
# change: return text -> return text.replace("optimizer.zero_grad()", "optimizer.zero_grad")
# %% wrong values: divides what DDP has divided
# says: once more
# change: return text -> return text.replace("loss.backward()\n", "loss.backward(); [p.grad.div_(dist.get_world_size()) for p in model.parameters()]\n")
# %% wrong values: averages by hand, over two
# says: at 3 processes
# change: return text -> return text.replace(WRAPPED, "").replace("loss.backward()\n", AVERAGES + "2\n")
# %% wrong values: rank 0 alone waits at a barrier
# says: did not end
# change: return text -> return text.replace("    steps = []\n", "    steps = []\n    rank or dist.barrier()\n")
# %% wrong values: right on rank 0 only: the others write nothing
# says: rank1.json is missing
# change: return text -> return text.replace("    with open(", "    if rank > 0:\n        return\n    with open(")
# %% wrong values: right at 2 processes only
# says: at 3 processes
# change: return text -> return text.replace("DistributedSampler(dataset)", "DistributedSampler(dataset, num_replicas=2, rank=rank)")
# %% wrong values: names torch.distributed.elastic, which nobody has imported
# says: has no attribute 'elastic'
# change: return text -> return text.replace("def main", "@torch.distributed.elastic.multiprocessing.errors.record\ndef main")
# %% wrong values: every process computes the whole batch, and nothing is sent
# says: no gradient crosses the ranks
# change: return text -> return replay(text, "[data] * n")
# %% wrong values: gathers the data once, and then every process computes everything
# says: gradients must cross in every step
# change: return text -> return replay(text, "[None] * n\n    dist.all_gather_object(everyone, data)")
# %% wrong order: no set_epoch
# says: set_epoch
# change: return text -> return text.replace("        sampler.set_epoch(epoch)\n", "")
# %% wrong order: tells the sampler the epoch when it is over
# says: same order
# change: return text -> return text.replace("        sampler.set_epoch(epoch)\n", "").replace("    parameters =", "        sampler.set_epoch(epoch)\n    parameters =")
# %% wrong order: no sampler: every process takes everything
# says: take the same samples
# change: return text -> return text.replace("args.batch_size, sampler=sampler", "args.batch_size")
# %% wrong order: the sampler drops the rest
# says: left out
# change: return text -> return text.replace("DistributedSampler(dataset)", "DistributedSampler(dataset, drop_last=True)")
