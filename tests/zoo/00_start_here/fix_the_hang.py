# Answers to fix_the_hang: right ones in other styles, and wrong ones with the part each must lose.
# Longer than 150 lines: whatever hangs, hides a hang, or sends losses in its own way stands in full.

# %% setup
import torch
import torch.distributed as dist


# %% right: in one function
def end_of_step(losses, tokens, learning_rate):
    total = losses.new_tensor([losses.sum(), len(losses)])
    dist.all_reduce(total)
    dist.all_reduce(tokens)
    dist.broadcast(learning_rate, src=0)
    return (total[0] / total[1]).item(), tokens.item(), learning_rate.item()


# %% right: all four numbers in one all_reduce
def end_of_step(losses, tokens, learning_rate):
    mine = learning_rate if dist.get_rank() == 0 else torch.zeros_like(learning_rate)
    packed = torch.stack([losses.sum(), torch.tensor(float(len(losses))).double(), tokens, mine])
    dist.all_reduce(packed)
    return [(packed[0] / packed[1]).item(), packed[2].item(), packed[3].item()]


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


# %% right: asynchronous, tensors returned
# from: in one function
# change: dist.all_reduce(total) -> works = [dist.all_reduce(total, async_op=True)]
# change: dist.all_reduce(tokens) -> works += [dist.all_reduce(tokens, async_op=True)]
# change: dist.broadcast(learning_rate, src=0) -> [work.wait() for work in [*works, dist.broadcast(learning_rate, 0, async_op=True)]]
# change: (total[0] / total[1]).item() -> total[0] / total[1]
# change: tokens.item(), learning_rate.item() -> tokens, learning_rate
# %% right: reduce to rank 0, broadcast from there
# from: in one function
# change: dist.all_reduce(total) -> dist.reduce(total, dst=0); dist.broadcast(total, src=0)
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
# from: in one function
# change: dist.all_reduce(tokens) -> dist.get_rank() and dist.all_reduce(tokens)
# change: dist.broadcast(learning_rate, src=0) -> dist.broadcast(learning_rate, src=0); dist.get_rank() or dist.all_reduce(tokens)
# %% wrong values: a barrier against the hang
# says: rank 0
# from: in one function
# change: dist.all_reduce(total) -> dist.barrier(); dist.get_rank() and dist.all_reduce(total); dist.barrier()
# %% wrong values: a barrier instead of wait()
# says: still in flight
# from: in one function
# change: dist.all_reduce(total) -> dist.all_reduce(total, async_op=True); dist.barrier()
# %% wrong values: a later call instead of wait()
# says: still in flight
# from: in one function
# change: dist.all_reduce(total) -> dist.all_reduce(total, async_op=True)
# %% wrong values: nothing hangs where nothing communicates
# says: nothing was communicated
# from: in one function
# change: dist.all_reduce(total) -> pass
# change: dist.all_reduce(tokens) -> pass
# change: dist.broadcast(learning_rate, src=0) -> pass
# %% wrong values: right on rank 0 only
# says: right on rank 0 only
# from: in one function
# change: dist.all_reduce(total) -> dist.reduce(total, dst=0)
# change: dist.all_reduce(tokens) -> dist.reduce(tokens, dst=0)
# %% wrong values: right at world size 2 only
# says: 3 ranks
# from: in one function
# change: dist.all_reduce(total) -> dist.get_rank() < 2 and dist.all_reduce(total)
# %% wrong values: the mean of the means
# says: ranks hold different numbers of losses
# from: in one function
# change: losses.new_tensor([losses.sum(), len(losses)]) -> losses.new_tensor([losses.mean(), 1])
# %% wrong values: the mean of no losses
# says: NaN
# from: in one function
# change: losses.new_tensor([losses.sum(), len(losses)]) -> losses.new_tensor([losses.mean() * len(losses), len(losses)])
# %% wrong values: a rank without losses has nothing to add
# says: no losses on rank 1
# from: in one function
# change: dist.all_reduce(total) -> len(losses) and dist.all_reduce(total)
# %% wrong values: adds the learning rates
# says: the ranks' rates are added
# from: in one function
# change: dist.broadcast(learning_rate, src=0) -> dist.all_reduce(learning_rate)
# %% wrong values: averages the learning rates
# says: the ranks' rates are averaged
# from: in one function
# change: dist.broadcast(learning_rate, src=0) -> dist.all_reduce(learning_rate, dist.ReduceOp.AVG)
# %% wrong values: the largest learning rate instead of rank 0's
# says: learning_rate
# from: in one function
# change: dist.broadcast(learning_rate, src=0) -> dist.all_reduce(learning_rate, op=dist.ReduceOp.MAX)
# %% wrong values: remembers the rate of the first call
# says: of the second call
# from: in one function
# change: learning_rate.item() -> vars(end_of_step).setdefault('rate', learning_rate.item())
# %% wrong values: returns the loss alone
# says: must return (mean_loss, tokens, learning_rate)
# from: in one function
# change: return (total[0] / total[1]).item(), tokens.item(), learning_rate.item() -> return (total[0] / total[1]).item()
# %% wrong values: rank 0 gives up with an exception
# says: rank 0
# from: in one function
# change: dist.all_reduce(total) -> 1 / (dist.get_rank() or 1 // dist.get_world_size()); dist.all_reduce(total)
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


# %% wrong bytes: pads the losses and sums them all
# says: 64
# from: in one function
# change: losses.new_tensor([losses.sum(), len(losses)]) -> losses.new_tensor([losses.sum(), len(losses), *[0] * 500])
# %% wrong bytes: every loss travels to every rank
# says: at most 64
# from: in one function
# change: dist.all_reduce(total) -> lists = [None] * dist.get_world_size(); dist.all_gather_object(lists, losses)
# change: (total[0] / total[1]).item() -> torch.cat(lists).mean().item()
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


# %% wrong bytes: the losses one by one, by send
# says: to collectives and sends
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
