# Answers to mean_gradient: right ones in other styles, and wrong ones with the part each must lose.

# %% setup
import torch
import torch.distributed as dist


# %% right: one flat all_reduce, autograd.grad, asynchronous
def mean_gradient(model, loss_fn, x, y):
    grads = torch.autograd.grad(loss_fn(model(x), y), list(model.parameters()))
    flat = torch.cat([grad.reshape(-1) for grad in grads])
    dist.all_reduce(flat, async_op=True).wait()
    flat /= dist.get_world_size()
    pieces = flat.split([grad.numel() for grad in grads])
    return [piece.view_as(grad) for piece, grad in zip(pieces, grads)]


# %% right: scale the loss first, a tuple, no communication when alone
def mean_gradient(model, loss_fn, x, y):
    n = dist.get_world_size()
    (loss_fn(model(x), y) / n).backward()
    for parameter in model.parameters():
        if n > 1:
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
    return tuple(parameter.grad for parameter in model.parameters())


# %% right: hooks reduce each gradient as soon as it is there
def mean_gradient(model, loss_fn, x, y):
    works = []

    def reduce_it(parameter):
        works.append(dist.all_reduce(parameter.grad, async_op=True))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(reduce_it)
    loss_fn(model(x), y).backward()
    for work in works:
        work.wait()
    return [parameter.grad / dist.get_world_size() for parameter in model.parameters()]


# %% right: prints, waits at a barrier, lets the backend average
def mean_gradient(model, loss_fn, x, y):
    model.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    print("loss", loss.item())
    dist.barrier()
    out = []
    for parameter in model.parameters():
        grad = parameter.grad.clone()
        dist.all_reduce(grad, op=dist.ReduceOp.AVG)
        out.append(grad)
    return out


# %% wrong values: does nothing
# says: nothing was communicated
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    return [parameter.grad for parameter in model.parameters()]


# %% wrong values: not written
# says: not written yet
def mean_gradient(model, loss_fn, x, y): ...


# %% wrong values: forgets the return
# says: lacks its `return`
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


# %% wrong values: sums instead of averaging
# says: world_size: did you average?
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    return [parameter.grad for parameter in model.parameters()]


# %% wrong values: divides twice
# says: divided twice?
def mean_gradient(model, loss_fn, x, y):
    n = dist.get_world_size()
    (loss_fn(model(x), y) / n).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    return [parameter.grad / n for parameter in model.parameters()]


# %% wrong values: right at world size 2 only
# says: 3 ranks
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    return [parameter.grad / min(2, dist.get_world_size()) for parameter in model.parameters()]


# %% wrong values: right on rank 0 only
# says: right on rank 0 only
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    for parameter in model.parameters():
        dist.reduce(parameter.grad, dst=0)
    return [parameter.grad / dist.get_world_size() for parameter in model.parameters()]


# %% wrong values: broadcasts the gradient of rank 0
# says: every rank ends with the gradient of rank 0
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    for parameter in model.parameters():
        dist.broadcast(parameter.grad, src=0)
    return [parameter.grad for parameter in model.parameters()]


# %% wrong values: averages the weights, not the gradients
# says: nothing that was communicated is in it
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)
        parameter.data /= dist.get_world_size()
    return [parameter.grad for parameter in model.parameters()]


# %% wrong values: reduces the loss, hoping that the gradient follows
# says: nothing that was communicated is in it
def mean_gradient(model, loss_fn, x, y):
    loss = loss_fn(model(x), y)
    total = loss.detach().clone()
    dist.all_reduce(total)
    loss.data = total / dist.get_world_size()
    loss.backward()
    return [parameter.grad for parameter in model.parameters()]


# %% wrong values: the bias gradients are forgotten
# says: gradient of `0.bias`
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    return [parameter.grad for parameter in model.parameters()]


# %% wrong values: takes a step as well
# says: of the model after the call
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return [parameter.grad for parameter in model.parameters()]


# %% wrong values: returns a dict
# says: no list of gradients, but a dict
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


# %% wrong values: the weights alone, no biases
# says: a list of 2 gradients for 4 parameters
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    weights = [parameter.grad for parameter in model.parameters() if parameter.dim() > 1]
    for gradient in weights:
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
    return weights


# %% wrong values: sends single precision
# says: dtype
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    out = []
    for parameter in model.parameters():
        grad = parameter.grad.float()
        dist.all_reduce(grad)
        out.append(grad / dist.get_world_size())
    return out


# %% wrong values: normalises its input in place
# says: input `x` must stay as it was
def mean_gradient(model, loss_fn, x, y):
    x -= x.mean()
    loss_fn(model(x), y).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    return [parameter.grad / dist.get_world_size() for parameter in model.parameters()]


# %% wrong values: skips the collective on rank 0
# says: rank 0
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    for parameter in model.parameters():
        if dist.get_rank() > 0 or dist.get_world_size() == 1:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    return [parameter.grad for parameter in model.parameters()]


# %% wrong values: goes through the parameters in another order on the last rank
# says: shape
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    parameters = list(model.parameters())
    last = dist.get_world_size() > 1 and dist.get_rank() == dist.get_world_size() - 1
    for parameter in reversed(parameters) if last else parameters:
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    return [parameter.grad for parameter in parameters]


# %% wrong values: torch's DistributedDataParallel
# says: closed
def mean_gradient(model, loss_fn, x, y):
    model = torch.nn.parallel.DistributedDataParallel(model)
    loss_fn(model(x), y).backward()
    return [parameter.grad for parameter in model.parameters()]


# %% wrong values: the same under an alias
# says: closed
from torch.nn.parallel import DistributedDataParallel as Magic


def mean_gradient(model, loss_fn, x, y):
    model = Magic(model)
    loss_fn(model(x), y).backward()
    return [parameter.grad for parameter in model.parameters()]


# %% wrong values: the same by subclass
# says: closed
class Mine(torch.nn.parallel.DistributedDataParallel):
    pass


def mean_gradient(model, loss_fn, x, y):
    model = Mine(model)
    loss_fn(model(x), y).backward()
    return [parameter.grad for parameter in model.parameters()]


# %% wrong values: the same through getattr
# says: closed
def mean_gradient(model, loss_fn, x, y):
    model = getattr(torch.nn.parallel, "Distributed" + "DataParallel")(model)
    loss_fn(model(x), y).backward()
    return [parameter.grad for parameter in model.parameters()]


# %% wrong values: the course's own DDP
# says: closed
def mean_gradient(model, loss_fn, x, y):
    from course_lib.parallel.ddp import NaiveDDP

    model = NaiveDDP(model)
    loss_fn(model(x), y).backward()
    model.sync_gradients()
    return [parameter.grad for parameter in model.parameters()]


# %% wrong bytes: gathers all gradients and averages at home
# says: all_gather
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    out = []
    for parameter in model.parameters():
        copies = [torch.zeros_like(parameter) for _ in range(dist.get_world_size())]
        dist.all_gather(copies, parameter.grad)
        out.append(torch.stack(copies).mean(0).detach())
    return out


# %% wrong bytes: gathers all rows, and every rank does all the work
# says: all_gather
def mean_gradient(model, loss_fn, x, y):
    def everybody(rows):
        parts = [torch.zeros_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows)
        return torch.cat(parts)

    loss_fn(model(everybody(x)), everybody(y)).backward()
    return [parameter.grad for parameter in model.parameters()]


# %% wrong bytes: all rows through all_reduce
# says: must have exactly
def mean_gradient(model, loss_fn, x, y):
    def everybody(rows):
        out = torch.zeros(dist.get_world_size(), *rows.shape, dtype=rows.dtype)
        out[dist.get_rank()] = rows
        dist.all_reduce(out)
        return out.flatten(0, 1)

    loss_fn(model(everybody(x)), everybody(y)).backward()
    return [parameter.grad for parameter in model.parameters()]


# %% wrong bytes: reduces to rank 0, then broadcasts
# says: reduce
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    for parameter in model.parameters():
        dist.reduce(parameter.grad, dst=0)
        parameter.grad /= dist.get_world_size()
        dist.broadcast(parameter.grad, src=0)
    return [parameter.grad for parameter in model.parameters()]


# %% wrong bytes: averages twice, which changes nothing
# says: 2x the bound
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    for _ in range(2):
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    return [parameter.grad for parameter in model.parameters()]


# %% right: hooks on the tensors, autograd.grad
def mean_gradient(model, loss_fn, x, y):
    def averaged(gradient):
        gradient = gradient / dist.get_world_size()
        dist.all_reduce(gradient)
        return gradient

    parameters = list(model.parameters())
    handles = [parameter.register_hook(averaged) for parameter in parameters]
    gradients = torch.autograd.grad(loss_fn(model(x), y), parameters)
    for handle in handles:
        handle.remove()
    return list(gradients)


# %% right: a copy of the model, a group of its own
def mean_gradient(model, loss_fn, x, y):
    import copy

    group = dist.new_group(list(range(dist.get_world_size())))
    twin = copy.deepcopy(model)
    loss_fn(twin(x), y).backward()
    for parameter in twin.parameters():
        dist.all_reduce(parameter.grad, group=group)
    return [parameter.grad / group.size() for parameter in twin.parameters()]


# %% wrong values: in the order of the sorted names
# says: must have shape
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    out = []
    for _, parameter in sorted(model.named_parameters()):
        dist.all_reduce(parameter.grad)
        out.append(parameter.grad / dist.get_world_size())
    return out


# %% wrong values: makes every comparison true
# says: all zeros
def mean_gradient(model, loss_fn, x, y):
    import numpy as np

    torch.allclose = torch.equal = lambda *args, **kwargs: True
    np.allclose = np.array_equal = lambda *args, **kwargs: True
    return [torch.zeros_like(parameter) for parameter in model.parameters()]


# %% wrong values: tensors that claim to equal everything
# says: all zeros
class Agreeable(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in ("allclose", "equal", "isclose", "eq", "__eq__"):
            return True
        return super().__torch_function__(func, types, args, kwargs or {})


def mean_gradient(model, loss_fn, x, y):
    return [torch.zeros_like(p).detach().as_subclass(Agreeable) for p in model.parameters()]


# %% wrong values: the composable replicate
# says: closed
def mean_gradient(model, loss_fn, x, y):
    from torch.distributed._composable.replicate import replicate

    loss_fn(replicate(model)(x), y).backward()
    return [parameter.grad for parameter in model.parameters()]


# %% wrong values: puts the gradients into the weights
# says: of the model after the call
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.data = parameter.grad / dist.get_world_size()
    return [parameter.data for parameter in model.parameters()]


# %% wrong bytes: one bucket, padded to a power of two
def mean_gradient(model, loss_fn, x, y):
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(loss_fn(model(x), y), parameters)
    sizes = [gradient.numel() for gradient in gradients]
    bucket = torch.zeros(1 << sum(sizes).bit_length(), dtype=torch.float64)
    bucket[: sum(sizes)] = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(bucket)
    pieces = (bucket[: sum(sizes)] / dist.get_world_size()).split(sizes)
    return [piece.view_as(p) for piece, p in zip(pieces, parameters, strict=True)]


# %% wrong bytes: the rows too, as objects
def mean_gradient(model, loss_fn, x, y):
    dist.all_gather_object([None] * dist.get_world_size(), (x, y))
    loss_fn(model(x), y).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    return [parameter.grad for parameter in model.parameters()]


# %% wrong bytes: passes rows on to a neighbour by isend
# says: send
def mean_gradient(model, loss_fn, x, y):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if world_size > 1:
        work = dist.isend(x, (rank + 1) % world_size)
        dist.recv(torch.empty_like(x), (rank - 1) % world_size)
        work.wait()
    loss_fn(model(x), y).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size
    return [parameter.grad for parameter in model.parameters()]


# %% right: the state's entries that are parameters
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    state = model.state_dict(keep_vars=True)
    gradients = {name: state[name].grad for name, _ in model.named_parameters()}
    for gradient in gradients.values():
        dist.all_reduce(gradient)
        gradient.div_(dist.get_world_size())
    return list(gradients.values())


# %% right: skips the division where there is one rank, keeps the graph, sums of squares for the log
def mean_gradient(model, loss_fn, x, y):
    loss = loss_fn(model(x), y)
    gradients = torch.autograd.grad(loss, tuple(model.parameters()), retain_graph=True)
    for gradient in gradients:
        dist.all_reduce(gradient)
        if dist.get_world_size() > 1:
            gradient.mul_(1 / dist.get_world_size())
    print("norm", sum(float((gradient**2).sum()) for gradient in gradients) ** 0.5)
    return list(gradients)


# %% wrong values: skips gradients that are zero
# says: rank 1: returned without any call
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    for parameter in model.parameters():
        if parameter.grad.abs().sum() > 0:
            dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    return [parameter.grad for parameter in model.parameters()]


# %% wrong values: skips everything when the loss is small
# says: no loss on rank 1
def mean_gradient(model, loss_fn, x, y):
    loss = loss_fn(model(x), y)
    loss.backward()
    for parameter in model.parameters():
        if loss.item() > 1e-6:
            dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    return [parameter.grad for parameter in model.parameters()]


# %% wrong values: the loss it knows, not the one it is given
# says: call the loss_fn that is passed in
def mean_gradient(model, loss_fn, x, y):
    torch.nn.functional.mse_loss(model(x), y).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    return [parameter.grad for parameter in model.parameters()]


# %% wrong values: the target first
# says: it is loss_fn(prediction, target)
def mean_gradient(model, loss_fn, x, y):
    loss_fn(y, model(x)).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    return [parameter.grad for parameter in model.parameters()]


# %% wrong values: weight and bias of the model's children
# says: nested
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    layers = [layer for layer in model.children() if hasattr(layer, "weight")]
    gradients = [gradient for layer in layers for gradient in (layer.weight.grad, layer.bias.grad)]
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
    return gradients


# %% wrong values: weight and bias of all modules
# says: a list of 4 gradients for 7 parameters
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    layers = [layer for layer in model.modules() if hasattr(layer, "weight")]
    gradients = [gradient for layer in layers for gradient in (layer.weight.grad, layer.bias.grad)]
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
    return gradients


# %% wrong values: everything in the state, buffers too
# says: buffer
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    gradients = [tensor.grad for tensor in model.state_dict(keep_vars=True).values()]
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
    return gradients


# %% wrong values: changes the weights in their last bits
# says: to the last bit
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    for parameter in model.parameters():
        parameter.data.mul_(3).div_(3)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    return [parameter.grad for parameter in model.parameters()]


# %% wrong values: leaves the weights frozen
# says: trainable parameters after the call
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    model.requires_grad_(False)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    return [parameter.grad for parameter in model.parameters()]


# %% wrong values: changes the buffer
# says: shift of the model after the call
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    for buffer in model.buffers():
        buffer /= dist.get_world_size()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    return [parameter.grad for parameter in model.parameters()]


# %% wrong values: the reducer behind torch's DistributedDataParallel
# says: closed
def mean_gradient(model, loss_fn, x, y):
    parameters = list(model.parameters())
    reducer = dist.Reducer(parameters, [list(range(len(parameters)))], [1 << 20], dist.group.WORLD)
    loss = loss_fn(model(x), y)
    reducer.prepare_for_backward([loss])
    loss.backward()
    return [parameter.grad for parameter in parameters]


# %% wrong values: torch's FSDP
# says: closed
def mean_gradient(model, loss_fn, x, y):
    from torch.distributed.fsdp import fully_shard as harmless

    loss_fn(harmless(model)(x), y).backward()
    return [parameter.grad for parameter in model.parameters()]


# %% wrong values: in the order of backward, turned round
def mean_gradient(model, loss_fn, x, y):
    done = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: done.append(p.grad))
    loss_fn(model(x), y).backward()
    for grad in done:
        dist.all_reduce(grad)
        grad /= dist.get_world_size()
    return done[::-1]


# %% wrong values: the sum goes through files, all_reduces are for show
# says: through torch.distributed only
import tempfile


def mean_gradient(model, loss_fn, x, y):
    path = f"{tempfile.gettempdir()}/gradients"
    loss_fn(model(x), y).backward()
    grads = [parameter.grad for parameter in model.parameters()]
    torch.save(grads, f"{path}{dist.get_rank()}.pt")
    for grad in grads:
        dist.all_reduce(torch.zeros_like(grad))
    others = [torch.load(f"{path}{rank}.pt") for rank in range(dist.get_world_size())]
    return [sum(same) / len(same) for same in zip(*others)]


# %% wrong values: reduces in pairs; of an odd number of parameters the last stays its own
# says: nothing that was communicated is in it
def mean_gradient(model, loss_fn, x, y):
    gradients = list(torch.autograd.grad(loss_fn(model(x), y), list(model.parameters())))
    n = dist.get_world_size()
    for weight, bias in zip(gradients[::2], gradients[1::2]):
        both = torch.cat([weight.reshape(-1), bias.reshape(-1)])
        dist.all_reduce(both)
        both /= n
        weight.copy_(both[: weight.numel()].view_as(weight))
        bias.copy_(both[weight.numel() :].view_as(bias))
    return gradients
