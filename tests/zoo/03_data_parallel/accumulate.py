# Answers to accumulate: many micro-batches, one synchronisation.

# %% setup
from contextlib import nullcontext

import torch
import torch.distributed as dist


def _share(inputs, num_samples):
    return len(inputs) * dist.get_world_size() / num_samples


# %% right: one loop, the last micro-batch outside no_sync
def accumulate(ddp, microbatches, loss_fn, num_samples):
    last = len(microbatches) - 1
    for i, (inputs, targets) in enumerate(microbatches):
        with nullcontext() if i == last else ddp.no_sync():
            loss = loss_fn(ddp(inputs), targets)
            (loss * _share(inputs, num_samples)).backward()
    ddp.sync_gradients()


# %% right: all of them under no_sync, sync_gradients sends
def accumulate(ddp, microbatches, loss_fn, num_samples):
    with ddp.no_sync():
        for inputs, targets in microbatches:
            loss_fn(ddp(inputs), targets).mul(_share(inputs, num_samples)).backward()
    ddp.sync_gradients()


# %% right: sums of losses, gradients scaled at the end
def accumulate(ddp, microbatches, loss_fn, num_samples):
    with ddp.no_sync():
        for inputs, targets in microbatches:
            (loss_fn(ddp(inputs), targets) * len(inputs)).backward()
    ddp.sync_gradients()
    for param in ddp.parameters():
        if param.grad is not None:
            param.grad *= dist.get_world_size() / num_samples


# %% right: counts the samples itself with one tiny all_reduce
def accumulate(ddp, microbatches, loss_fn, num_samples):
    total = torch.tensor(sum(len(inputs) for inputs, _ in microbatches))
    dist.all_reduce(total)
    *early, final = microbatches
    with ddp.no_sync():
        for inputs, targets in early:
            loss = loss_fn(ddp(inputs), targets) * _share(inputs, total.item())
            loss.backward()
    loss = loss_fn(ddp(final[0]), final[1]) * _share(final[0], total.item())
    loss.backward()
    ddp.sync_gradients()


# %% wrong values: does nothing
# says: all zeros
def accumulate(ddp, microbatches, loss_fn, num_samples):
    ddp.sync_gradients()


# %% wrong values: never synchronises
# says: nothing was communicated
def accumulate(ddp, microbatches, loss_fn, num_samples):
    with ddp.no_sync():
        for inputs, targets in microbatches:
            (loss_fn(ddp(inputs), targets) * _share(inputs, num_samples)).backward()


# %% wrong values: all micro-batches weigh the same
# says: whatever their size
def accumulate(ddp, microbatches, loss_fn, num_samples):
    with ddp.no_sync():
        for inputs, targets in microbatches:
            (loss_fn(ddp(inputs), targets) / len(microbatches)).backward()
    ddp.sync_gradients()


# %% wrong values: micro-batches are added up
# says: never divided
def accumulate(ddp, microbatches, loss_fn, num_samples):
    with ddp.no_sync():
        for inputs, targets in microbatches:
            loss_fn(ddp(inputs), targets).backward()
    ddp.sync_gradients()


# %% wrong values: weighs by this rank's samples only
# says: every rank weighs the same
def accumulate(ddp, microbatches, loss_fn, num_samples):
    mine = sum(len(inputs) for inputs, _ in microbatches)
    with ddp.no_sync():
        for inputs, targets in microbatches:
            (loss_fn(ddp(inputs), targets) * len(inputs) / mine).backward()
    ddp.sync_gradients()


# %% wrong values: forgets that ddp divides by world_size
# says: put back
def accumulate(ddp, microbatches, loss_fn, num_samples):
    with ddp.no_sync():
        for inputs, targets in microbatches:
            (loss_fn(ddp(inputs), targets) * len(inputs) / num_samples).backward()
    ddp.sync_gradients()


# %% wrong values: right at world size 2 only
# says: 3 ranks
def accumulate(ddp, microbatches, loss_fn, num_samples):
    with ddp.no_sync():
        for inputs, targets in microbatches:
            share = len(inputs) * min(2, dist.get_world_size()) / num_samples
            (loss_fn(ddp(inputs), targets) * share).backward()
    ddp.sync_gradients()


# %% wrong values: right on rank 0 only
# says: right on rank 0 only
def accumulate(ddp, microbatches, loss_fn, num_samples):
    with ddp.no_sync():
        for inputs, targets in microbatches:
            (loss_fn(ddp(inputs), targets) * _share(inputs, num_samples)).backward()
    local = [p.grad.clone() for p in ddp.parameters()]
    ddp.sync_gradients()
    if dist.get_rank() != 0:
        for param, grad in zip(ddp.parameters(), local):
            param.grad = grad


# %% wrong values: only the last micro-batch
# says: only the last micro-batch
def accumulate(ddp, microbatches, loss_fn, num_samples):
    for inputs, targets in microbatches:
        ddp.zero_grad()
        with ddp.no_sync():
            (loss_fn(ddp(inputs), targets) * _share(inputs, num_samples)).backward()
    ddp.sync_gradients()


# %% wrong values: takes the optimizer's step itself
# says: after a step
def accumulate(ddp, microbatches, loss_fn, num_samples):
    with ddp.no_sync():
        for inputs, targets in microbatches:
            (loss_fn(ddp(inputs), targets) * _share(inputs, num_samples)).backward()
    ddp.sync_gradients()
    torch.optim.SGD(ddp.parameters(), lr=0.1).step()


# %% wrong values: one rank skips the synchronisation
# says: all_reduce
def accumulate(ddp, microbatches, loss_fn, num_samples):
    with ddp.no_sync():
        for inputs, targets in microbatches:
            (loss_fn(ddp(inputs), targets) * _share(inputs, num_samples)).backward()
    if dist.get_rank() != 1:
        ddp.sync_gradients()


# %% wrong bytes: synchronises after every micro-batch
# says: no_sync
def accumulate(ddp, microbatches, loss_fn, num_samples):
    smallest = torch.tensor(len(microbatches))
    dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
    for i, (inputs, targets) in enumerate(microbatches):
        with ddp.no_sync() if i < len(microbatches) - smallest else nullcontext():
            (loss_fn(ddp(inputs), targets) * _share(inputs, num_samples)).backward()
    ddp.sync_gradients()


# %% wrong bytes: averages by hand once more
# says: bytes into collectives
def accumulate(ddp, microbatches, loss_fn, num_samples):
    with ddp.no_sync():
        for inputs, targets in microbatches:
            (loss_fn(ddp(inputs), targets) * _share(inputs, num_samples)).backward()
    ddp.sync_gradients()
    for param in ddp.parameters():
        dist.all_reduce(param.grad)
        param.grad /= dist.get_world_size()


# %% wrong memory: glues the micro-batches together again
# says: of the largest micro-batch
def accumulate(ddp, microbatches, loss_fn, num_samples):
    inputs = torch.cat([x for x, _ in microbatches])
    targets = torch.cat([y for _, y in microbatches])
    (loss_fn(ddp(inputs), targets) * _share(inputs, num_samples)).backward()
    ddp.sync_gradients()


# %% wrong memory: adds up the losses and calls backward once
# says: before the next forward
def accumulate(ddp, microbatches, loss_fn, num_samples):
    total = 0.0
    for inputs, targets in microbatches:
        total = total + loss_fn(ddp(inputs), targets) * _share(inputs, num_samples)
    total.backward()
    ddp.sync_gradients()


# %% wrong values: torch's DDP under an alias
# says: closed here
from torch.nn.parallel import DistributedDataParallel as wrap


def accumulate(ddp, microbatches, loss_fn, num_samples):
    model = wrap(ddp.module)
    *early, (last, goal) = microbatches
    with model.no_sync():
        for inputs, targets in early:
            (loss_fn(model(inputs), targets) * _share(inputs, num_samples)).backward()
    (loss_fn(model(last), goal) * _share(last, num_samples)).backward()


# %% wrong values: the library's wrapper by a subclass
# says: closed here
from course_lib.parallel.ddp import NaiveDDP


class _Mine(NaiveDDP):
    pass


def accumulate(ddp, microbatches, loss_fn, num_samples):
    model = _Mine(ddp.module)
    for inputs, targets in microbatches:
        (loss_fn(model(inputs), targets) * _share(inputs, num_samples)).backward()
    model.sync_gradients()


# %% wrong values: torch's DDP through getattr
# says: closed here
def accumulate(ddp, microbatches, loss_fn, num_samples):
    model = getattr(torch.nn.parallel, "Distributed" + "DataParallel")(ddp.module)
    for inputs, targets in microbatches:
        (loss_fn(model(inputs), targets) * _share(inputs, num_samples)).backward()


# %% wrong values: not written
# says: not written yet
def accumulate(ddp, microbatches, loss_fn, num_samples): ...


# %% right: sums of its own by torch.autograd.grad
def accumulate(ddp, microbatches, loss_fn, num_samples):
    params = [p for p in ddp.parameters() if p.requires_grad]
    sums = [torch.zeros_like(p) for p in params]
    for inputs, targets in microbatches:
        grads = torch.autograd.grad(loss_fn(ddp(inputs), targets), params)
        for total, grad in zip(sums, grads):
            total += grad * (len(inputs) * dist.get_world_size() / num_samples)
    for param, total in zip(params, sums):
        param.grad = total
    ddp.sync_gradients()


# %% wrong values: never enters no_sync, and ranks hold different numbers of micro-batches
# says: outside_no_sync
def accumulate(ddp, microbatches, loss_fn, num_samples):
    for inputs, targets in microbatches:
        share = len(inputs) * dist.get_world_size() / num_samples
        (loss_fn(ddp(inputs), targets) * share).backward()
    ddp.sync_gradients()


# %% wrong memory: keeps every graph
def accumulate(ddp, microbatches, loss_fn, num_samples):
    losses = []
    with ddp.no_sync():
        for inputs, targets in microbatches:
            share = len(inputs) * dist.get_world_size() / num_samples
            losses.append(loss_fn(ddp(inputs), targets) * share)
            losses[-1].backward(retain_graph=True)
    ddp.sync_gradients()


# %% wrong values: the share of a micro-batch is rounded to float32
# says: float32's rounding
def accumulate(ddp, microbatches, loss_fn, num_samples):
    scale = torch.tensor(dist.get_world_size() / num_samples)
    with ddp.no_sync():
        for inputs, targets in microbatches:
            (loss_fn(ddp(inputs), targets) * (scale * len(inputs))).backward()
    ddp.sync_gradients()


# %% wrong values: the first call's shares are used ever after
SHARES = []


def accumulate(ddp, microbatches, loss_fn, num_samples):
    SHARES.extend([] if SHARES else [_share(inputs, num_samples) for inputs, _ in microbatches])
    with ddp.no_sync():
        for (inputs, targets), share in zip(microbatches, SHARES):
            (loss_fn(ddp(inputs), targets) * share).backward()
    ddp.sync_gradients()


# %% wrong values: keeps every graph and hides its activations in numpy
# says: closed here
def accumulate(ddp, microbatches, loss_fn, num_samples):
    scale = dist.get_world_size() / num_samples
    hooks = torch.autograd.graph.saved_tensors_hooks
    with ddp.no_sync(), hooks(lambda t: t.detach().numpy().copy(), torch.from_numpy):
        losses = [loss_fn(ddp(x), y) * len(x) * scale for x, y in microbatches]
        sum(losses).backward()
    ddp.sync_gradients()


# %% wrong values: scales by hooks on the parameters that are never removed, wrong from the second call on
def accumulate(ddp, microbatches, loss_fn, num_samples):
    share = [0.0]
    for param in ddp.module.parameters():
        if param.requires_grad:
            param.register_hook(lambda grad: grad * share[0])
    with ddp.no_sync():
        for inputs, targets in microbatches:
            share[0] = len(inputs) * dist.get_world_size() / num_samples
            loss_fn(ddp(inputs), targets).backward()
    ddp.sync_gradients()


# %% wrong values: scale remembered from the first call
def accumulate(ddp, microbatches, loss_fn, num_samples):
    if not hasattr(ddp, "_loss_scale"):
        ddp._loss_scale = dist.get_world_size() / num_samples
    with ddp.no_sync():
        for inputs, targets in microbatches:
            (loss_fn(ddp(inputs), targets) * (len(targets) * ddp._loss_scale)).backward()
    ddp.sync_gradients()
