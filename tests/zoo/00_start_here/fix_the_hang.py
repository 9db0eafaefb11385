# Answers to fix_the_hang: right ones in other styles, and wrong ones with the part each must lose.

# %% setup
import torch
import torch.distributed as dist


# %% right: broadcast first on every rank, sum and count apart
def mean_loss(losses):
    total, count = losses.sum(), torch.tensor(losses.numel())
    dist.all_reduce(total)
    dist.all_reduce(count)
    if dist.get_rank() == 0:
        print("logged")
    return (total / count).item()


def end_of_step(losses, tokens, learning_rate):
    loss = mean_loss(losses)
    dist.broadcast(learning_rate, src=0)
    dist.all_reduce(tokens)
    return loss, tokens.item(), learning_rate.item()


# %% right: all four numbers in one all_reduce
def end_of_step(losses, tokens, learning_rate):
    mine = learning_rate if dist.get_rank() == 0 else torch.zeros_like(learning_rate)
    packed = torch.stack([losses.sum(), torch.tensor(float(len(losses))).double(), tokens, mine])
    dist.all_reduce(packed)
    return [(packed[0] / packed[1]).item(), packed[2].item(), packed[3].item()]


# %% right: asynchronous, tensors returned
def end_of_step(losses, tokens, learning_rate):
    total = torch.stack([losses.sum(), torch.tensor(float(len(losses)), dtype=torch.float64)])
    works = [
        dist.all_reduce(total, async_op=True),
        dist.all_reduce(tokens, async_op=True),
        dist.broadcast(learning_rate, 0, async_op=True),
    ]
    for work in works:
        work.wait()
    return total[0] / total[1], tokens, learning_rate


# %% wrong values: both programs as they were
# says: rank 0
def mean_loss(losses):
    total = torch.stack([losses.sum(), torch.tensor(float(len(losses))).double()])
    if dist.get_rank() == 0:
        print("end of step")
    else:
        dist.all_reduce(total)
    return (total[0] / total[1]).item()


def end_of_step(losses, tokens, learning_rate):
    loss = mean_loss(losses)
    if dist.get_rank() == 0:
        dist.broadcast(learning_rate, src=0)
        dist.all_reduce(tokens)
    else:
        dist.all_reduce(tokens)
        dist.broadcast(learning_rate, src=0)
    return loss, tokens.item(), learning_rate.item()


# %% wrong values: only the first program is repaired
# says: broadcast
def end_of_step(losses, tokens, learning_rate):
    total = torch.stack([losses.sum(), torch.tensor(float(len(losses))).double()])
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        dist.broadcast(learning_rate, src=0)
        dist.all_reduce(tokens)
    else:
        dist.all_reduce(tokens)
        dist.broadcast(learning_rate, src=0)
    return (total[0] / total[1]).item(), tokens.item(), learning_rate.item()


# %% wrong values: a barrier against the hang
# says: rank 0
def end_of_step(losses, tokens, learning_rate):
    total = torch.stack([losses.sum(), torch.tensor(float(len(losses))).double()])
    dist.barrier()
    if dist.get_rank() > 0:
        dist.all_reduce(total)
    dist.barrier()
    dist.all_reduce(tokens)
    dist.broadcast(learning_rate, src=0)
    return (total[0] / total[1]).item(), tokens.item(), learning_rate.item()


# %% wrong values: not written
# says: not written yet
def end_of_step(losses, tokens, learning_rate):
    raise NotImplementedError("exercise fix_the_hang")


# %% wrong values: nothing hangs where nothing communicates
# says: nothing was communicated
def end_of_step(losses, tokens, learning_rate):
    return losses.mean().item(), tokens.item(), learning_rate.item()


# %% wrong values: right on rank 0 only
# says: right on rank 0 only
def end_of_step(losses, tokens, learning_rate):
    total = torch.stack([losses.sum(), torch.tensor(float(len(losses))).double()])
    dist.reduce(total, dst=0)
    dist.reduce(tokens, dst=0)
    dist.broadcast(learning_rate, src=0)
    return (total[0] / total[1]).item(), tokens.item(), learning_rate.item()


# %% wrong values: right at world size 2 only
# says: 3 ranks
def end_of_step(losses, tokens, learning_rate):
    total = torch.stack([losses.sum(), torch.tensor(float(len(losses))).double()])
    if dist.get_rank() <= 1:
        dist.all_reduce(total)
    dist.all_reduce(tokens)
    dist.broadcast(learning_rate, src=0)
    return (total[0] / total[1]).item(), tokens.item(), learning_rate.item()


# %% wrong values: the mean of the means
# says: ranks hold different numbers of losses
def end_of_step(losses, tokens, learning_rate):
    mean = losses.mean()
    dist.all_reduce(mean)
    dist.all_reduce(tokens)
    dist.broadcast(learning_rate, src=0)
    return (mean / dist.get_world_size()).item(), tokens.item(), learning_rate.item()


# %% wrong values: adds the learning rates
# says: the ranks' rates are added
def end_of_step(losses, tokens, learning_rate):
    packed = torch.stack([losses.sum(), torch.tensor(float(len(losses))).double(), tokens, learning_rate])
    dist.all_reduce(packed)
    return (packed[0] / packed[1]).item(), packed[2].item(), packed[3].item()


# %% wrong values: returns the loss alone
# says: no three numbers
def end_of_step(losses, tokens, learning_rate):
    total = torch.stack([losses.sum(), torch.tensor(float(len(losses))).double()])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


# %% wrong values: rank 0 gives up with an exception
# says: rank 0
def end_of_step(losses, tokens, learning_rate):
    if dist.get_rank() == 0 and dist.get_world_size() > 1:
        raise RuntimeError("rank 0 only logs")
    dist.all_reduce(tokens)
    return losses.mean().item(), tokens.item(), learning_rate.item()


# %% wrong bytes: every loss travels to every rank
# says: bytes
def end_of_step(losses, tokens, learning_rate):
    everything = [None] * dist.get_world_size()
    dist.all_gather_object(everything, losses)
    dist.all_reduce(tokens)
    dist.broadcast(learning_rate, src=0)
    return torch.cat(everything).mean().item(), tokens.item(), learning_rate.item()


# %% wrong bytes: pads the losses and sums them all
# says: 64
def end_of_step(losses, tokens, learning_rate):
    padded = torch.zeros(dist.get_world_size(), 500, dtype=torch.float64)
    padded[dist.get_rank(), : len(losses)] = losses
    dist.all_reduce(padded)
    dist.all_reduce(tokens)
    dist.broadcast(learning_rate, src=0)
    return padded[padded > 0].mean().item(), tokens.item(), learning_rate.item()
