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


# %% right: gathers the sums, not the losses
def mean_loss(losses):
    mine = torch.tensor([float(losses.sum()), float(losses.numel())], dtype=torch.float64)
    everyone = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    total, count = torch.stack(everyone).sum(0).tolist()
    return total / count


def tokens_and_rate(tokens, learning_rate):
    mine = torch.tensor([tokens.item(), learning_rate.item()], dtype=torch.float64)
    everyone = torch.zeros(dist.get_world_size() * 2, dtype=torch.float64)
    dist.all_gather_into_tensor(everyone, mine)
    return everyone[0::2].sum().item(), everyone[1].item()


def end_of_step(losses, tokens, learning_rate):
    return mean_loss(losses), *tokens_and_rate(tokens, learning_rate)


# %% right: reduce to rank 0, broadcast from there
def end_of_step(losses, tokens, learning_rate):
    total = losses.new_tensor([losses.sum(), len(losses)])
    dist.reduce(total, dst=0)
    dist.broadcast(total, src=0)
    dist.all_reduce(tokens)
    dist.broadcast(learning_rate, src=0)
    return (total[0] / total[1]).item(), tokens.item(), learning_rate.item()


# %% wrong values: the largest learning rate instead of rank 0's
# says: learning_rate
def end_of_step(losses, tokens, learning_rate):
    total = losses.new_tensor([losses.sum(), len(losses)])
    dist.all_reduce(total)
    dist.all_reduce(tokens)
    dist.all_reduce(learning_rate, op=dist.ReduceOp.MAX)
    return (total[0] / total[1]).item(), tokens.item(), learning_rate.item()


# %% wrong values: a thread waits in its place, for a second
# says: communicated in another thread
def end_of_step(losses, tokens, learning_rate):
    import threading

    total = losses.new_tensor([losses.sum(), len(losses)])
    if dist.get_rank() != 0:
        thread = threading.Thread(target=dist.all_reduce, args=(total,), daemon=True)
        thread.start()
        thread.join(1.0)
    return (total[0] / total[1]).item(), tokens.item(), learning_rate.item()


# %% wrong bytes: the losses as objects
# says: sums travel
def end_of_step(losses, tokens, learning_rate):
    lists = [None] * dist.get_world_size()
    dist.all_gather_object(lists, losses.tolist())
    everyone = [loss for mine in lists for loss in mine]
    dist.all_reduce(tokens)
    dist.broadcast(learning_rate, src=0)
    return sum(everyone) / len(everyone), tokens.item(), learning_rate.item()


# %% wrong bytes: padded losses through the group's own method
# says: sums travel
def end_of_step(losses, tokens, learning_rate):
    padded = losses.new_full((1024,), float("nan"))
    padded[: len(losses)] = losses
    everyone = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
    dist.group.WORLD.allgather([everyone], [padded]).wait()
    dist.all_reduce(tokens)
    dist.broadcast(learning_rate, src=0)
    return torch.cat(everyone).nanmean().item(), tokens.item(), learning_rate.item()


# %% right: nothing but barriers and sums
def end_of_step(losses, tokens, learning_rate):
    numbers = losses.new_zeros(4)
    numbers[0], numbers[1], numbers[2] = sum(losses.tolist()), losses.numel(), tokens
    if dist.get_rank() == 0:
        numbers[3] = learning_rate
    dist.barrier()
    dist.all_reduce(numbers)
    dist.barrier()
    return (numbers[0] / numbers[1]).item(), numbers[2].item(), numbers[3].item()


# %% wrong values: a rank without losses has nothing to add
# says: no losses on rank 1
def end_of_step(losses, tokens, learning_rate):
    total = losses.new_tensor([losses.sum(), len(losses)])
    if len(losses):
        dist.all_reduce(total)
    dist.all_reduce(tokens)
    dist.broadcast(learning_rate, src=0)
    return (total[0] / total[1]).item(), tokens.item(), learning_rate.item()


# %% wrong values: the mean of no losses
# says: NaN
def end_of_step(losses, tokens, learning_rate):
    total = losses.new_tensor([losses.mean() * len(losses), len(losses)])
    dist.all_reduce(total)
    dist.all_reduce(tokens)
    dist.broadcast(learning_rate, src=0)
    return (total[0] / total[1]).item(), tokens.item(), learning_rate.item()


# %% wrong bytes: the losses one by one, by send
# says: bytes into collectives and sends
def end_of_step(losses, tokens, learning_rate):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    counts = [losses.new_zeros(1) for _ in range(world_size)]
    dist.all_gather(counts, losses.new_tensor([len(losses)]))
    total = losses.sum()
    if rank == 0:
        for other in range(1, world_size):
            for _ in range(int(counts[other])):
                loss = losses.new_zeros(1)
                dist.recv(loss, other)
                total += loss[0]
    else:
        for loss in losses:
            dist.send(loss.reshape(1), 0)
    dist.broadcast(total, src=0)
    dist.all_reduce(tokens)
    dist.broadcast(learning_rate, src=0)
    return (total / torch.stack(counts).sum()).item(), tokens.item(), learning_rate.item()


# %% wrong values: remembers the rate of the first call
RATE = []


def mean_loss(losses):
    total = torch.tensor([losses.sum().item(), len(losses)], dtype=torch.float64)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def tokens_and_rate(tokens, learning_rate):
    # Wrong: "the learning rate of rank 0": from the second step on it is that of the first step.
    tokens = tokens.clone()
    dist.all_reduce(tokens)
    if not RATE:
        rate = learning_rate.clone()
        dist.broadcast(rate, src=0)
        RATE.append(rate.item())
    return tokens.item(), RATE[0]


def end_of_step(losses, tokens, learning_rate):
    """Both programs, one after the other. Leave this as it is."""
    return mean_loss(losses), *tokens_and_rate(tokens, learning_rate)
