# Answers to zero2_optimizer. `_Base` is a whole right answer in parts; the others change one of them.

# %% setup
import torch
import torch.distributed as dist


class _Base:
    """A right answer: each parameter sharded by itself, its gradient reduced in a hook."""

    def __init__(self, params, make_optimizer):
        self.params = list(params)
        self.n, self.rank = dist.get_world_size(), dist.get_rank()
        self.shards = [self.pad(p)[self.rank].clone() for p in self.params]
        self.inner = make_optimizer(self.shards)
        for param, shard in zip(self.params, self.shards):
            param.register_post_accumulate_grad_hook(lambda p, s=shard: self.on_gradient(p, s))

    def pad(self, tensor):
        flat = tensor.detach().flatten()
        return torch.nn.functional.pad(flat, (0, -len(flat) % self.n)).view(self.n, -1)

    def zero_grad(self):
        for shard in self.shards:
            shard.grad = None

    @torch.no_grad()
    def on_gradient(self, param, shard):
        self.keep(shard, self.reduce(param, shard))
        param.grad = None

    def reduce(self, param, shard):
        out = torch.empty_like(shard)
        dist.reduce_scatter_tensor(out, self.pad(param.grad).flatten())
        return out / self.n

    def keep(self, shard, grad):
        shard.grad = grad if shard.grad is None else shard.grad + grad

    @torch.no_grad()
    def step(self):
        self.inner.step()
        for param, shard in zip(self.params, self.shards):
            self.gather(param, shard)

    def gather(self, param, shard):
        full = shard.new_empty(self.n * len(shard))
        dist.all_gather_into_tensor(full, shard)
        param.copy_(full[: param.numel()].view_as(param))


# %% right: lists on the wire, pre-divided, gradient buffers that stay
class ZeroTwo(_Base):
    def reduce(self, param, shard):
        out = torch.zeros_like(shard)
        dist.reduce_scatter(out, list((self.pad(param.grad) / self.n).unbind()))
        return out


class Zero2Optimizer(ZeroTwo):
    def zero_grad(self):
        for shard in self.shards:
            if shard.grad is not None:
                shard.grad.zero_()


# %% right: one transfer in flight, waited for by the next hook
class Zero2Optimizer(_Base):
    flight = None

    def on_gradient(self, param, shard):
        self.land()
        out, flat = torch.empty_like(shard), self.pad(param.grad).flatten()
        self.flight = (dist.reduce_scatter_tensor(out, flat, async_op=True), out, flat, shard)
        param.grad = None

    def land(self):
        if self.flight:
            work, out, _, shard = self.flight
            work.wait()
            self.keep(shard, out / self.n)
            self.flight = None

    def step(self):
        self.land()
        super().step()


# %% wrong values: does nothing
# says: must equal
class Zero2Optimizer(_Base):
    def on_gradient(self, param, shard):
        return

    def step(self):
        return


# %% wrong values: sums instead of averaging
# says: did you average?
class Zero2Optimizer(_Base):
    def reduce(self, param, shard):
        return super().reduce(param, shard) * self.n


# %% wrong values: a second backward overwrites the first
# says: only the last backward
class Zero2Optimizer(_Base):
    def keep(self, shard, grad):
        shard.grad = grad


# %% wrong values: never gathers
# says: must equal
class Zero2Optimizer(_Base):
    def gather(self, param, shard):
        full = self.pad(param).clone()
        full[self.rank] = shard
        param.copy_(full.flatten()[: param.numel()].view_as(param))


# %% wrong values: right on rank 0 only
# says: right on rank 0 only
class Zero2Optimizer(_Base):
    def gather(self, param, shard):
        before = param.clone()
        super().gather(param, shard)
        if self.rank:
            param.copy_(before)


# %% wrong values: right at world size 2 only
# says: 3 ranks
class Zero2Optimizer(_Base):
    def reduce(self, param, shard):
        return super().reduce(param, shard) * self.n / min(self.n, 2)


# %% wrong values: reads the buffer before the data arrived
# says: must equal
class Zero2Optimizer(_Base):
    def reduce(self, param, shard):
        out = torch.zeros_like(shard)
        work = dist.reduce_scatter_tensor(out, self.pad(param.grad).flatten(), async_op=True)
        early = shard * 0
        work.wait()
        return early


# %% wrong values: one rank skips the gradient of a scalar
# says: reduce_scatter
class Zero2Optimizer(_Base):
    def reduce(self, param, shard):
        skips = self.rank == 1 and param.dim() == 0
        return torch.zeros_like(shard) if skips else super().reduce(param, shard)


# %% wrong bytes: an all_reduce of which a part is kept
# says: counts double
class Zero2Optimizer(_Base):
    def reduce(self, param, shard):
        flat = self.pad(param.grad).clone()
        dist.all_reduce(flat)
        return flat[self.rank] / self.n


# %% wrong memory: stage 1, gradients wait for the step
# says: at the end of backward
class Zero2Optimizer(_Base):
    def on_gradient(self, param, shard):
        return

    def step(self):
        for param, shard in zip(self.params, self.shards):
            if param.grad is not None:
                super().on_gradient(param, shard)
        super().step()


# %% wrong memory: reduces in the hook and keeps the full gradients
# says: at the end of backward
class Zero2Optimizer(_Base):
    def on_gradient(self, param, shard):
        grad = param.grad
        super().on_gradient(param, shard)
        self.full = [*getattr(self, "full", []), grad]

    def zero_grad(self):
        super().zero_grad()
        self.full = []


# %% wrong values: the library's own
# says: closed here
from course_lib.parallel.zero import ZeroOptimizer as Helper


class Zero2Optimizer(Helper):
    def __init__(self, params, make_optimizer):
        super().__init__(params, torch.optim.SGD, stage=2, lr=0.1)


# %% wrong values: not written
# says: not written yet
class Zero2Optimizer:
    def __init__(self, params, make_optimizer): ...

    def zero_grad(self): ...

    def step(self): ...


# %% right: every rank owns whole parameters; the hook reduces to the owner
class Zero2Optimizer:
    def __init__(self, params, make_optimizer):
        self.params, self.rank, load = list(params), dist.get_rank(), [0] * dist.get_world_size()
        self.owner, self.kept = {}, {}
        for param in sorted(self.params, key=lambda p: -p.numel()):
            self.owner[param] = load.index(min(load))
            load[self.owner[param]] += param.numel()
            param.register_post_accumulate_grad_hook(self.on_gradient)
        own = [p for p in self.params if self.owner[p] == self.rank]
        self.inner = make_optimizer(own) if own else None

    @torch.no_grad()
    def on_gradient(self, param):
        grad, param.grad = param.grad, None
        dist.reduce(grad, self.owner[param])
        if self.owner[param] == self.rank:
            grad /= dist.get_world_size()
            self.kept[param] = self.kept[param] + grad if param in self.kept else grad

    def zero_grad(self):
        self.kept = {}

    @torch.no_grad()
    def step(self):
        for param, grad in self.kept.items():
            param.grad = grad
        if self.inner is not None:
            self.inner.step()
        for param in self.params:
            param.grad = None
            dist.broadcast(param, self.owner[param])


# %% right: pairs of gradients share a message
class Zero2Optimizer(_Base):
    def __init__(self, params, make_optimizer):
        super().__init__(params, make_optimizer)
        self.waiting = []

    def on_gradient(self, param, shard):
        self.waiting.append((self.pad(param.grad), shard))
        param.grad = None
        if len(self.waiting) == 2:
            self.send()

    def send(self):
        rows = torch.cat([rows for rows, _ in self.waiting], 1)
        out = rows.new_empty(rows.shape[1])
        dist.reduce_scatter_tensor(out, rows.flatten())
        out /= self.n
        for part, (_, shard) in zip(out.split([len(s) for _, s in self.waiting]), self.waiting):
            self.keep(shard, part.clone())
        self.waiting = []

    @torch.no_grad()
    def step(self):
        if self.waiting:
            self.send()
        super().step()


# %% wrong values: leaves .grad, so a second backward counts the first again
# says: must equal
class Zero2Optimizer(_Base):
    def on_gradient(self, param, shard):
        self.keep(shard, self.reduce(param, shard))

    def zero_grad(self):
        super().zero_grad()
        for param in self.params:
            param.grad = None


# %% wrong values: builds the inner optimizer anew at each step
# says: must equal
class Zero2Optimizer(_Base):
    def __init__(self, params, make_optimizer):
        super().__init__(params, make_optimizer)
        self.make = make_optimizer

    def step(self):
        self.inner = self.make(self.shards)
        super().step()


# %% wrong values: zero_grad forgets the parameters' gradients, not the shards'
# says: must equal
class Zero2Optimizer(_Base):
    def zero_grad(self):
        for param in self.params:
            param.grad = None


# %% wrong values: divides by the number of parameters' shards once more
# says: must equal
class Zero2Optimizer(_Base):
    def keep(self, shard, grad):
        super().keep(shard, grad / self.n)


# %% wrong values: each rank keeps its part of its own gradient
# says: must equal
class Zero2Optimizer(_Base):
    def reduce(self, param, shard):
        return self.pad(param.grad)[self.rank].clone()


# %% wrong values: ranks go through the parameters in different order
# says: rank
class Zero2Optimizer(_Base):
    @torch.no_grad()
    def step(self):
        self.inner.step()
        pairs = list(zip(self.params, self.shards))
        for param, shard in pairs[::-1] if self.rank == 1 else pairs:
            self.gather(param, shard)


# %% wrong memory: gradients wait for the end of backward, then all are reduced
# says: at any time of backward
class Zero2Optimizer(_Base):
    is_queued = False

    def on_gradient(self, param, shard):
        if not self.is_queued:
            self.is_queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self.reduce_all)

    def reduce_all(self):
        self.is_queued = False
        for param, shard in zip(self.params, self.shards):
            if param.grad is not None:
                super().on_gradient(param, shard)


# %% wrong memory: launches in the hook, waits in step
# says: at the end of backward
class Zero2Optimizer(_Base):
    @torch.no_grad()
    def on_gradient(self, param, shard):
        out, flat = torch.empty_like(shard), self.pad(param.grad).flatten()
        work = dist.reduce_scatter_tensor(out, flat, async_op=True)
        self.flights = [*getattr(self, "flights", []), (work, out, flat, shard)]
        param.grad = None

    @torch.no_grad()
    def step(self):
        for work, out, _, shard in self.flights:
            work.wait()
            self.keep(shard, out / self.n)
        self.flights = []
        super().step()


# %% wrong memory: shards are views of padded copies
# says: beyond the model
class Zero2Optimizer(_Base):
    def __init__(self, params, make_optimizer):
        super().__init__(params, make_optimizer)
        self.copies = [self.pad(p).clone() for p in self.params]
        for shard, copy in zip(self.shards, self.copies):
            shard.data = copy[self.rank]


# %% wrong bytes: gathers in every backward too
# says: bytes moved in a step
class Zero2Optimizer(_Base):
    @torch.no_grad()
    def on_gradient(self, param, shard):
        super().on_gradient(param, shard)
        self.gather(param, shard)


# %% wrong memory: averages whole gradients, updates whole parameters
# says: of optimizer state at any time
class Zero2Optimizer:
    def __init__(self, params, make_optimizer):
        self.params = list(params)
        self.inner = make_optimizer(self.params)

    def zero_grad(self):
        self.inner.zero_grad()

    def step(self):
        for param in self.params:
            if param.grad is not None:
                dist.all_reduce(param.grad)
                param.grad /= dist.get_world_size()
        self.inner.step()


# %% wrong values: torch's FSDP under an alias
# says: closed here
from torch.distributed.fsdp import fully_shard as helper


class Zero2Optimizer(_Base):
    def __init__(self, params, make_optimizer):
        super().__init__(params, make_optimizer)
        helper(torch.nn.ParameterList(self.params), reshard_after_forward=False)


# %% wrong memory: whole gradients wait for the step, as Python's numbers
# says: outside tensors
class Zero2Optimizer(_Base):
    def __init__(self, params, make_optimizer):
        super().__init__(params, make_optimizer)
        self.numbers = {}

    def on_gradient(self, param, shard):
        numbers, param.grad = param.grad.flatten().tolist(), None
        before = self.numbers.get(param, [0.0] * len(numbers))
        self.numbers[param] = [a + b for a, b in zip(before, numbers)]

    @torch.no_grad()
    def step(self):
        for param, shard in zip(self.params, self.shards):
            if param in self.numbers:
                padded = self.pad(torch.tensor(self.numbers.pop(param), dtype=shard.dtype))
                shard.grad = torch.empty_like(shard)
                dist.reduce_scatter_tensor(shard.grad, padded.flatten())
                shard.grad /= self.n
        super().step()


# %% wrong memory: gradients wait in numpy arrays for the end of backward
# says: outside tensors
class Zero2Optimizer(_Base):
    waiting = ()

    @torch.no_grad()
    def on_gradient(self, param, shard):
        if not self.waiting:
            self.waiting = []
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)
        self.waiting.append((param, shard, param.grad.numpy().copy()))
        param.grad = None

    @torch.no_grad()
    def finish(self):
        for param, shard, array in self.waiting:
            param.grad = torch.from_numpy(array)
            super().on_gradient(param, shard)
        self.waiting = ()


# %% wrong values: shards in a dictionary of the class, so a second optimizer gets those of the first
class Zero2Optimizer:
    shards = {}

    def __init__(self, params, make_optimizer):
        self.params = list(params)
        self.n, self.rank = dist.get_world_size(), dist.get_rank()
        for index, param in enumerate(self.params):
            size = -(-param.numel() // self.n)
            flat = param.detach().new_zeros(self.n * size)
            flat[: param.numel()] = param.detach().reshape(-1)
            own = flat[self.rank * size : (self.rank + 1) * size].clone()
            self.shards.setdefault((index, param.shape), own)
            param.register_post_accumulate_grad_hook(lambda param, index=index: self.reduce(index))
        self.mine = [self.shards[index, param.shape] for index, param in enumerate(self.params)]
        self.inner = make_optimizer(self.mine)

    @torch.no_grad()
    def reduce(self, index):
        param, shard = self.params[index], self.mine[index]
        flat = shard.new_zeros(self.n * len(shard))
        flat[: param.numel()] = param.grad.reshape(-1)
        param.grad = None
        own = torch.empty_like(shard)
        dist.reduce_scatter_tensor(own, flat)
        own /= self.n
        shard.grad = own if shard.grad is None else shard.grad + own

    def zero_grad(self):
        for shard in self.mine:
            shard.grad = None

    @torch.no_grad()
    def step(self):
        for shard in self.mine:
            if shard.grad is None:
                shard.grad = torch.zeros_like(shard)
        self.inner.step()
        for param, shard in zip(self.params, self.mine):
            flat = shard.new_empty(self.n * len(shard))
            dist.all_gather_into_tensor(flat, shard)
            param.copy_(flat[: param.numel()].view(param.shape))
