# Answers to naive_ddp: averaged gradients, one all_reduce a parameter.

# %% setup
import torch
import torch.distributed as dist
from torch import nn


class _Base(nn.Module):
    """What all answers share; each overrides what it does differently."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.start_equal()

    @torch.no_grad()
    def start_equal(self):
        for tensor in [*self.module.parameters(), *self.module.buffers()]:
            dist.broadcast(tensor, src=0)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def grads(self):
        return [p.grad for p in self.module.parameters() if p.grad is not None]


# %% right: hooks reduce during backward, divided first
class NaiveDDP(_Base):
    def __init__(self, module):
        super().__init__(module)
        for param in module.parameters():
            if param.requires_grad:
                param.register_post_accumulate_grad_hook(self.reduce)

    def reduce(self, param):
        param.grad.div_(dist.get_world_size())
        dist.all_reduce(param.grad)

    def sync_gradients(self):
        pass


# %% right: all launched, then all waited for, ReduceOp.AVG
class NaiveDDP(_Base):
    def sync_gradients(self):
        works = [dist.all_reduce(g, op=dist.ReduceOp.AVG, async_op=True) for g in self.grads()]
        for work in works:
            work.wait()


# %% right: no nn.Module, copies, one flat broadcast for the start, nothing at one rank
class NaiveDDP:
    def __init__(self, module):
        self.module, self.world_size = module, dist.get_world_size()
        tensors = [t.data for t in [*module.parameters(), *module.buffers()]]
        flat = torch.cat([t.reshape(-1) for t in tensors])
        if self.world_size > 1:
            dist.broadcast(flat, src=0)
        for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors])):
            tensor.copy_(part.view_as(tensor))

    def __call__(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def sync_gradients(self):
        for _, param in self.module.named_parameters():
            if param.grad is not None and self.world_size > 1:
                total = param.grad.clone()
                dist.all_reduce(total)
                param.grad = total / self.world_size


# %% right: starts equal by an all_reduce of zeros everywhere but on rank 0
class NaiveDDP(_Base):
    @torch.no_grad()
    def start_equal(self):
        for tensor in [*self.module.parameters(), *self.module.buffers()]:
            if dist.get_rank() != 0:
                tensor.zero_()
            dist.all_reduce(tensor)

    def sync_gradients(self):
        for grad in self.grads():
            dist.all_reduce(grad)
            grad /= dist.get_world_size()


# %% wrong values: does nothing
# says: nothing is communicated, neither at the start nor later
class NaiveDDP(_Base):
    def start_equal(self):
        return

    def sync_gradients(self):
        return


# %% wrong values: broadcasts the weights and never the gradients
# says: rank 0 holds its own value: nothing that was communicated is in it
class NaiveDDP(_Base):
    def sync_gradients(self):
        return


# %% wrong values: never broadcasts the weights
# says: never broadcast
class NaiveDDP(_Base):
    def start_equal(self):
        pass

    def sync_gradients(self):
        for grad in self.grads():
            dist.all_reduce(grad)
            grad /= dist.get_world_size()


# %% wrong values: broadcasts only what trains
# says: frozen parameters start as each rank made them
class NaiveDDP(_Base):
    @torch.no_grad()
    def start_equal(self):
        for param in self.module.parameters():
            if param.requires_grad:
                dist.broadcast(param, src=0)
        for buffer in self.module.buffers():
            dist.broadcast(buffer, src=0)

    def sync_gradients(self):
        for grad in self.grads():
            dist.all_reduce(grad)
            grad /= dist.get_world_size()


# %% wrong values: forgets the buffers
# says: buffers start as each rank made them
class NaiveDDP(_Base):
    @torch.no_grad()
    def start_equal(self):
        for param in self.module.parameters():
            dist.broadcast(param, src=0)

    def sync_gradients(self):
        for grad in self.grads():
            dist.all_reduce(grad)
            grad /= dist.get_world_size()


# %% wrong values: sums instead of averaging
# says: did you average?
class NaiveDDP(_Base):
    def sync_gradients(self):
        for grad in self.grads():
            dist.all_reduce(grad)


# %% wrong values: divides twice
# says: twice
class NaiveDDP(_Base):
    def sync_gradients(self):
        for grad in self.grads():
            dist.all_reduce(grad, op=dist.ReduceOp.AVG)
            grad /= dist.get_world_size()


# %% wrong values: reduces the parameters instead of the gradients
# says: gradient
class NaiveDDP(_Base):
    def sync_gradients(self):
        for param in self.module.parameters():
            if param.grad is not None:
                dist.all_reduce(param.data, op=dist.ReduceOp.AVG)


# %% wrong values: right at world size 2 only
# says: 3 ranks
class NaiveDDP(_Base):
    def sync_gradients(self):
        for grad in self.grads():
            dist.all_reduce(grad)
            if dist.get_world_size() > 1:
                grad /= 2


# %% wrong values: right on rank 0 only
# says: right on rank 0 only
class NaiveDDP(_Base):
    def sync_gradients(self):
        for grad in self.grads():
            mean = grad.clone()
            dist.all_reduce(mean)
            if dist.get_rank() == 0:
                grad.copy_(mean / dist.get_world_size())


# %% wrong values: a tied weight is reduced once for each of its names and summed
# says: tied
class NaiveDDP(_Base):
    def sync_gradients(self):
        for _, param in self.module.named_parameters(remove_duplicate=False):
            if param.grad is not None:
                dist.all_reduce(param.grad)
                param.grad /= dist.get_world_size()
        for (_, p), g in zip(self.module.named_parameters(), [1] * 99):
            if p.grad is not None and self.is_tied(p):
                p.grad *= dist.get_world_size()

    def is_tied(self, param):
        names = [p for _, p in self.module.named_parameters(remove_duplicate=False)]
        return sum(p is param for p in names) > 1


# %% wrong values: forgets the keyword arguments
# says: with_optional
class NaiveDDP(_Base):
    def forward(self, x):
        return self.module(x)

    def sync_gradients(self):
        for grad in self.grads():
            dist.all_reduce(grad)
            grad /= dist.get_world_size()


# %% wrong values: skips a collective on one rank
# says: all_reduce
class NaiveDDP(_Base):
    def sync_gradients(self):
        for i, grad in enumerate(self.grads()):
            if i == 2 and dist.get_rank() == 1:
                continue
            dist.all_reduce(grad)
            grad /= dist.get_world_size()


# %% wrong values: one rank never synchronises
# says: all_reduce
class NaiveDDP(_Base):
    def sync_gradients(self):
        if dist.get_rank() == 1:
            return
        for grad in self.grads():
            dist.all_reduce(grad)
            grad /= dist.get_world_size()


# %% wrong values: ranks go through the parameters in different order
# says: all_reduce
class NaiveDDP(_Base):
    def sync_gradients(self):
        grads = self.grads()
        for grad in grads[::-1] if dist.get_rank() == 1 else grads:
            dist.all_reduce(grad)
            grad /= dist.get_world_size()


# %% wrong bytes: reduce to rank 0, then broadcast
# says: broadcast
class NaiveDDP(_Base):
    def sync_gradients(self):
        for grad in self.grads():
            dist.reduce(grad, dst=0)
            grad /= dist.get_world_size()
            dist.broadcast(grad, src=0)


# %% wrong bytes: gathers all gradients and averages at home
# says: all_gather
class NaiveDDP(_Base):
    def sync_gradients(self):
        for grad in self.grads():
            parts = [torch.empty_like(grad) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, grad)
            grad.copy_(sum(parts) / len(parts))


# %% wrong bytes: averages twice
# says: one a parameter that has a gradient
class NaiveDDP(_Base):
    def sync_gradients(self):
        for grad in self.grads() + self.grads():
            dist.all_reduce(grad)
            grad /= dist.get_world_size()


# %% wrong bytes: a tied weight travels once for each of its names
# says: one a parameter that has a gradient
class NaiveDDP(_Base):
    def sync_gradients(self):
        for _, param in self.module.named_parameters(remove_duplicate=False):
            if param.grad is not None:
                dist.all_reduce(param.grad)
                param.grad /= dist.get_world_size()


# %% wrong values: sends zeros for parameters that nobody used
# says: must have no gradient
class NaiveDDP(_Base):
    def sync_gradients(self):
        for param in self.module.parameters():
            if param.requires_grad:
                grad = torch.zeros_like(param) if param.grad is None else param.grad
                dist.all_reduce(grad)
                param.grad = grad / dist.get_world_size()


# %% wrong bytes: broadcasts the weights twice
# says: constructor
class NaiveDDP(_Base):
    def __init__(self, module):
        super().__init__(module)
        self.start_equal()

    def sync_gradients(self):
        for grad in self.grads():
            dist.all_reduce(grad)
            grad /= dist.get_world_size()


# %% wrong values: torch's DDP under an alias
# says: closed here
from torch.nn.parallel import DistributedDataParallel as Helper


class NaiveDDP(_Base):
    def __init__(self, module):
        nn.Module.__init__(self)
        self.module = Helper(module)

    def sync_gradients(self):
        pass


# %% wrong values: a subclass of torch's DDP
# says: closed here
class NaiveDDP(nn.parallel.DistributedDataParallel):
    def sync_gradients(self):
        return


# %% wrong values: torch's DDP through getattr, errors swallowed
# says: closed here
class NaiveDDP(_Base):
    def __init__(self, module):
        nn.Module.__init__(self)
        self.module = module
        try:
            self.module = getattr(torch.nn.parallel, "Distributed" + "DataParallel")(module)
        except Exception:
            pass

    def sync_gradients(self):
        pass


# %% wrong values: the library's own
# says: closed here
from course_lib.parallel.ddp import NaiveDDP as _Ready


class NaiveDDP(_Ready):
    mine = 1 + 1


# %% wrong values: the wrapper that another check supplies
# says: closed here
from course_lib.grading import supplied_ddp as _other


class NaiveDDP(_other.SuppliedDDP):
    mine = 1 + 1


# %% wrong values: not written
# says: not written yet
class NaiveDDP(nn.Module):
    def __init__(self, module): ...

    def forward(self, *args, **kwargs): ...

    def sync_gradients(self): ...


# %% right: functional collectives
from torch.distributed import _functional_collectives as functional


class NaiveDDP(_Base):
    def sync_gradients(self):
        for param in self.module.parameters():
            if param.grad is not None:
                total = functional.all_reduce(param.grad, "sum", dist.group.WORLD)
                param.grad = functional.wait_tensor(total) / dist.get_world_size()


# %% wrong values: takes positional arguments only on to the module
class NaiveDDP(_Base):
    def forward(self, *args, **kwargs):
        return self.module(*args)

    def sync_gradients(self):
        for grad in self.grads():
            dist.all_reduce(grad)
            grad /= dist.get_world_size()


# %% wrong values: broadcasts the state_dict, which lacks a buffer that is not saved
# says: `state_dict()` does not give it
class NaiveDDP(_Base):
    def start_equal(self):
        for tensor in {t.data_ptr(): t for t in self.module.state_dict().values()}.values():
            dist.broadcast(tensor, src=0)

    def sync_gradients(self):
        for grad in self.grads():
            dist.all_reduce(grad)
            grad /= dist.get_world_size()


# %% wrong values: broadcasts floating point only
# says: num_seen
class NaiveDDP(_Base):
    def start_equal(self):
        for tensor in [*self.module.parameters(), *self.module.buffers()]:
            if tensor.is_floating_point():
                dist.broadcast(tensor.data, src=0)

    def sync_gradients(self):
        for grad in self.grads():
            dist.all_reduce(grad)
            grad /= dist.get_world_size()


# %% wrong values: fills empty gradients with zeros afterwards
# says: must have no gradient
class NaiveDDP(_Base):
    def sync_gradients(self):
        for param in self.module.parameters():
            if param.grad is None:
                param.grad = torch.zeros_like(param)
            else:
                dist.all_reduce(param.grad)
                param.grad /= dist.get_world_size()


# %% wrong bytes: a barrier each step
# says: barrier among them
class NaiveDDP(_Base):
    def sync_gradients(self):
        dist.barrier()
        for grad in self.grads():
            dist.all_reduce(grad)
            grad /= dist.get_world_size()


# %% right: tensor hooks replace each gradient by its mean; the weights go down a chain of sends
class NaiveDDP(_Base):
    @torch.no_grad()
    def start_equal(self):
        rank, last = dist.get_rank(), dist.get_world_size() - 1
        for tensor in [*self.module.parameters(), *self.module.buffers()]:
            if rank > 0:
                dist.recv(tensor, src=rank - 1)
            if rank < last:
                dist.send(tensor, dst=rank + 1)
        for param in self.module.parameters():
            if param.requires_grad:
                param.register_hook(self.mean)

    def mean(self, grad):
        total = grad.clone()
        dist.all_reduce(total)
        return total / dist.get_world_size()

    def sync_gradients(self):
        pass


# %% wrong values: the first step decides which parameters have gradients
class NaiveDDP(_Base):
    live = None

    def sync_gradients(self):
        if self.live is None:
            self.live = [p for p in self.module.parameters() if p.grad is not None]
        for param in self.live:
            dist.all_reduce(param.grad)
            param.grad /= dist.get_world_size()


# %% wrong values: sums go through the rendezvous store, all_reduces are for show
# says: through torch.distributed only
class NaiveDDP(_Base):
    steps = 0

    def sync_gradients(self):
        store, n = dist.distributed_c10d._get_default_store(), dist.get_world_size()
        self.steps += 1
        for i, grad in enumerate(self.grads()):
            store.set(f"{self.steps}/{i}/{dist.get_rank()}", grad.numpy().tobytes())
            dist.all_reduce(torch.zeros_like(grad))
            parts = [bytearray(store.get(f"{self.steps}/{i}/{rank}")) for rank in range(n)]
            mean = sum(torch.frombuffer(part, dtype=grad.dtype) for part in parts) / n
            grad.copy_(mean.view_as(grad))


# %% wrong bytes: parameters of all models in one list of the class
class NaiveDDP(_Base):
    params = []

    def __init__(self, module):
        super().__init__(module)
        self.params.extend(p for p in module.parameters() if p.requires_grad)

    def sync_gradients(self):
        for param in self.params:
            grad = torch.zeros_like(param) if param.grad is None else param.grad
            dist.all_reduce(grad)
            grad /= dist.get_world_size()


# %% wrong values: launches in hooks and waits for the last call only
# says: are still in flight
class NaiveDDP(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        self.last = None
        with torch.no_grad():
            for tensor in [*module.parameters(), *module.buffers()]:
                dist.broadcast(tensor, 0)
        for param in module.parameters():
            if param.requires_grad:
                param.register_post_accumulate_grad_hook(self.launch)

    def launch(self, param):
        param.grad /= dist.get_world_size()
        self.last = dist.all_reduce(param.grad, async_op=True)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def sync_gradients(self):
        if self.last is not None:
            self.last.wait()
        self.last = None
