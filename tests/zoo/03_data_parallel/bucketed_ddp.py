# Answers to bucketed_ddp. `_Base` is a whole right answer in parts; the others change one of them.

# %% setup
import torch
import torch.distributed as dist
from torch import nn


class _Base(nn.Module):
    """A right answer: what is ready is counted in hooks, buckets leave in order, copies in and out."""

    def __init__(self, module, bucket_bytes):
        super().__init__()
        self.module, self.bucket_bytes = module, bucket_bytes
        self.world_size = dist.get_world_size()
        self.start_equal()
        self.params = [p for p in module.parameters() if p.requires_grad]
        self.buckets = self.pack()
        self.home = {p: i for i, bucket in enumerate(self.buckets) for p in bucket}
        self.begin()
        for param in self.params:
            param.register_post_accumulate_grad_hook(self.on_gradient)

    @torch.no_grad()
    def start_equal(self):
        for tensor in [*self.module.parameters(), *self.module.buffers()]:
            dist.broadcast(tensor, src=0)

    def pack(self):
        buckets, used = [[]], 0
        for param in reversed(self.params):
            if buckets[-1] and used + param.nbytes > self.bucket_bytes:
                buckets.append([])
                used = 0
            buckets[-1].append(param)
            used += param.nbytes
        return buckets

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def begin(self):
        self.ready, self.sent = set(), []

    def on_gradient(self, param):
        self.ready.add(param)
        self.launch_full()

    def launch_full(self):
        while len(self.sent) < len(self.buckets) and self.ready.issuperset(self.buckets[len(self.sent)]):
            self.launch()

    def flatten(self, bucket):
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        return torch.cat([g.reshape(-1) for g in grads])

    def launch(self):
        flat = self.flatten(self.buckets[len(self.sent)])
        self.sent.append((dist.all_reduce(flat, async_op=True), flat))

    def unpack(self, bucket, flat):
        offset = 0
        for param in bucket:
            param.grad = (flat[offset : offset + param.numel()] / self.world_size).view_as(param)
            offset += param.numel()

    def sync_gradients(self):
        while len(self.sent) < len(self.buckets):
            self.launch()
        for bucket, (work, flat) in zip(self.buckets, self.sent):
            work.wait()
            self.unpack(bucket, flat)
        self.begin()


# %% right: flat buffers made once, gradients are views of them, pre-divided
class BucketedDDP(_Base):
    def begin(self):
        super().begin()
        if not hasattr(self, "flats"):
            sizes = [sum(p.numel() for p in bucket) for bucket in self.buckets]
            self.flats = [torch.zeros(s, dtype=b[0].dtype) for s, b in zip(sizes, self.buckets)]
            self.views = {}
            for flat, bucket in zip(self.flats, self.buckets):
                parts = flat.split([p.numel() for p in bucket])
                self.views |= {p: part.view_as(p) for p, part in zip(bucket, parts)}

    @torch.no_grad()
    def on_gradient(self, param):
        self.fill(param)
        self.launch_full()

    @torch.no_grad()
    def fill(self, param):
        view = self.views[param]
        view.zero_() if param.grad is None else view.copy_(param.grad / self.world_size)
        param.grad = view
        self.ready.add(param)

    def launch(self):
        index = len(self.sent)
        for param in self.buckets[index]:
            if param not in self.ready:
                self.fill(param)
        self.sent.append(dist.all_reduce(self.flats[index], async_op=True))

    def sync_gradients(self):
        while len(self.sent) < len(self.buckets):
            self.launch()
        for work in self.sent:
            work.wait()
        self.begin()


# %% right: ReduceOp.AVG, and None stays None where nobody used a parameter is not asked
class BucketedDDP(_Base):
    def launch(self):
        flat = self.flatten(self.buckets[len(self.sent)])
        self.sent.append((dist.all_reduce(flat, op=dist.ReduceOp.AVG, async_op=True), flat))

    def unpack(self, bucket, flat):
        for param, mean in zip(bucket, flat.split([p.numel() for p in bucket])):
            param.grad = mean.view_as(param).clone()


# %% right: no nn.Module, tensor hooks that carry the gradient, counters, no communication at one rank
class BucketedDDP:
    def __init__(self, module, bucket_bytes):
        self.module, self.n = module, dist.get_world_size()
        for tensor in [*module.parameters(), *module.buffers()] if self.n > 1 else []:
            dist.broadcast(tensor.data, src=0)
        self.buckets, free = [], 0
        for param in [p for p in module.parameters() if p.requires_grad][::-1] if self.n > 1 else []:
            if param.nbytes > free:
                self.buckets.append([])
                free = bucket_bytes
            free -= param.nbytes
            where = (len(self.buckets) - 1, len(self.buckets[-1]))
            self.buckets[-1].append(param)
            param.register_hook(lambda grad, where=where: self.take(grad, *where))
        self.reset()

    def __call__(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def reset(self):
        self.parts = [[None] * len(bucket) for bucket in self.buckets]
        self.works, self.flats = [], []

    def take(self, grad, bucket, position):
        self.parts[bucket][position] = grad.detach().reshape(-1)
        while len(self.works) < len(self.buckets) and all(p is not None for p in self.parts[len(self.works)]):
            self.send()

    def send(self):
        i = len(self.works)
        pairs = zip(self.parts[i], self.buckets[i])
        self.flats.append(torch.cat([p.new_zeros(p.numel()) if g is None else g for g, p in pairs]))
        self.works.append(dist.all_reduce(self.flats[i], async_op=True))

    def sync_gradients(self):
        while len(self.works) < len(self.buckets):
            self.send()
        for work, flat, bucket in zip(self.works, self.flats, self.buckets):
            work.wait()
            for param, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                param.grad = part.view(param.shape) / self.n
        self.reset()


# %% wrong values: does nothing
# says: never broadcast
class BucketedDDP(_Base):
    def start_equal(self):
        return

    def on_gradient(self, param):
        return

    def sync_gradients(self):
        return


# %% wrong values: never broadcasts the weights
# says: never broadcast
class BucketedDDP(_Base):
    def start_equal(self):
        return


# %% wrong values: sums instead of averaging
# says: did you average?
class BucketedDDP(_Base):
    def unpack(self, bucket, flat):
        for param, part in zip(bucket, flat.split([p.numel() for p in bucket])):
            param.grad = part.view_as(param)


# %% wrong values: right at world size 2 only
# says: 3 ranks
class BucketedDDP(_Base):
    def __init__(self, module, bucket_bytes):
        super().__init__(module, bucket_bytes)
        self.world_size = min(2, self.world_size)


# %% wrong values: right on rank 0 only
# says: right on rank 0 only
class BucketedDDP(_Base):
    def unpack(self, bucket, flat):
        if dist.get_rank() == 0:
            super().unpack(bucket, flat)


# %% wrong values: never waits, and reads the flat buffer before it was filled
# says: nothing that was communicated is in it
class BucketedDDP(_Base):
    def launch(self):
        flat = self.flatten(self.buckets[len(self.sent)])
        mine = flat.clone() * self.world_size
        self.sent.append((dist.all_reduce(flat, async_op=True), mine))


# %% wrong values: counters are not reset, so the second step sends nothing
# says: step 1
class BucketedDDP(_Base):
    def sync_gradients(self):
        if self.sent is None:
            return
        while len(self.sent) < len(self.buckets):
            self.launch()
        for bucket, (work, flat) in zip(self.buckets, self.sent):
            work.wait()
            self.unpack(bucket, flat)
        self.sent = None

    def launch_full(self):
        if self.sent is not None:
            super().launch_full()


# %% wrong values: forgets the last bucket, which is not full
# says: gradient
class BucketedDDP(_Base):
    def sync_gradients(self):
        full = [i for i, b in enumerate(self.buckets) if sum(p.nbytes for p in b) * 1.3 >= self.bucket_bytes]
        keep = self.buckets if len(full) == len(self.buckets) or self.world_size == 1 else self.buckets[:-1]
        while len(self.sent) < len(self.buckets):
            self.launch()
        for bucket, (work, flat) in zip(self.buckets, self.sent):
            work.wait()
            if any(bucket is b for b in keep):
                self.unpack(bucket, flat)
        self.begin()


# %% wrong values: launches buckets as they fill, so ranks that skip a layer pair wrong ones
# says: all_reduce
class BucketedDDP(_Base):
    def begin(self):
        super().begin()
        self.started = []

    def launch_full(self):
        for i, bucket in enumerate(self.buckets):
            if i not in self.started and self.ready.issuperset(bucket):
                self.start(i)

    def start(self, i):
        flat = self.flatten(self.buckets[i])
        self.started.append(i)
        self.sent.append((dist.all_reduce(flat, async_op=True), flat))

    def sync_gradients(self):
        for i in range(len(self.buckets)):
            if i not in self.started:
                self.start(i)
        for i, (work, flat) in zip(self.started, self.sent):
            work.wait()
            self.unpack(self.buckets[i], flat)
        self.begin()


# %% wrong values: a rank skips buckets of which it has no gradient
# says: all_reduce
class BucketedDDP(_Base):
    def sync_gradients(self):
        for bucket in self.buckets:
            if all(p.grad is None for p in bucket):
                self.begin()
                return
        super().sync_gradients()


# %% wrong values: one rank skips its last bucket
# says: all_reduce
class _Nothing:
    def wait(self):
        pass


class BucketedDDP(_Base):
    def launch(self):
        if dist.get_rank() == 1 and len(self.sent) == len(self.buckets) - 1:
            self.sent.append((_Nothing(), self.flatten(self.buckets[-1])))
        else:
            super().launch()


# %% wrong bytes, order, clock: one all_reduce a parameter after backward, the naive version
# says: packing rule
class BucketedDDP(_Base):
    def on_gradient(self, param):
        pass

    def pack(self):
        return [[p] for p in reversed(self.params)]


# %% wrong order, clock: buckets are sent after backward, nothing overlaps
# says: must have been launched
class BucketedDDP(_Base):
    def on_gradient(self, param):
        return


# %% wrong order, clock: waits for each bucket where it launches it
# says: waited for
class BucketedDDP(_Base):
    def launch(self):
        super().launch()
        self.sent[-1][0].wait()


# %% wrong order, clock: a blocking all_reduce in the hook
# says: async_op=True
class _Done:
    def wait(self):
        pass


class BucketedDDP(_Base):
    def launch(self):
        flat = self.flatten(self.buckets[len(self.sent)])
        dist.all_reduce(flat)
        self.sent.append((_Done(), flat))


# %% wrong order, clock: launches everything in the hook of the last gradient
# says: must have been launched
class BucketedDDP(_Base):
    def launch_full(self):
        if len(self.ready) == len(self.params):
            while len(self.sent) < len(self.buckets):
                self.launch()


# %% wrong order: waits for the bucket before when it launches the next
# says: waited for
class BucketedDDP(_Base):
    def launch(self):
        if self.sent:
            self.sent[-1][0].wait()
        super().launch()


# %% wrong order, clock: packs right and sends only the first bucket early
# says: must have been launched
class BucketedDDP(_Base):
    def launch_full(self):
        if not self.sent and self.ready.issuperset(self.buckets[0]):
            self.launch()


# %% wrong bytes: one all_reduce a parameter, overlapped
# says: packing rule
class BucketedDDP(_Base):
    def pack(self):
        return [[p] for p in reversed(self.params)]


# %% wrong bytes: a bucket closes after it has exceeded bucket_bytes
# says: packing rule
class BucketedDDP(_Base):
    def pack(self):
        buckets, used = [[]], 0
        for param in reversed(self.params):
            if used >= self.bucket_bytes:
                buckets.append([])
                used = 0
            buckets[-1].append(param)
            used += param.nbytes
        return buckets


# %% wrong bytes, clock: reduces each bucket twice
# says: packing rule
class BucketedDDP(_Base):
    def sync_gradients(self):
        super().sync_gradients()
        for bucket in self.buckets:
            flat = self.flatten(bucket)
            dist.all_reduce(flat)
            self.unpack(bucket, flat)


# %% wrong bytes: pads every bucket to bucket_bytes
# says: packing rule
class BucketedDDP(_Base):
    def flatten(self, bucket):
        flat = super().flatten(bucket)
        return torch.cat([flat, flat.new_zeros(max(0, self.bucket_bytes // 8 - len(flat)))])


# %% wrong values: torch's DDP under an alias
# says: closed here
from torch.nn.parallel import DistributedDataParallel as Helper


class BucketedDDP(nn.Module):
    def __init__(self, module, bucket_bytes):
        super().__init__()
        self.module = Helper(module, bucket_cap_mb=bucket_bytes / 2**20)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def sync_gradients(self):
        pass


# %% wrong values: a subclass of torch's DDP through getattr
# says: closed here
_Ready = getattr(nn.parallel, "Distributed" + "DataParallel")


class BucketedDDP(_Ready):
    def __init__(self, module, bucket_bytes):
        super().__init__(module, bucket_cap_mb=bucket_bytes / 2**20)

    def sync_gradients(self):
        pass


# %% wrong values: the library's own
# says: closed here
import course_lib.parallel.ddp as answer


class BucketedDDP(answer.BucketedDDP):
    mine = 1 + 1


# %% wrong values: not written
# says: not written yet
class BucketedDDP(nn.Module):
    def __init__(self, module, bucket_bytes): ...

    def forward(self, *args, **kwargs): ...

    def sync_gradients(self): ...


# %% wrong bytes: a bucket closes when the next parameter would fill it exactly
# says: bucket_bytes=448
class BucketedDDP(_Base):
    def pack(self):
        buckets, used = [[]], 0
        for param in reversed(self.params):
            if buckets[-1] and used + param.nbytes >= self.bucket_bytes:
                buckets.append([])
                used = 0
            buckets[-1].append(param)
            used += param.nbytes
        return buckets


# %% wrong values: a rank that did not use a parameter gets no gradient
# says: a rank that did not use the parameter keeps its own gradient
class BucketedDDP(_Base):
    def unpack(self, bucket, flat):
        unused = [param for param in bucket if param.grad is None]
        super().unpack(bucket, flat)
        for param in unused:
            param.grad = None


# %% wrong values: broadcasts floating point only
# says: num_seen
class BucketedDDP(_Base):
    def start_equal(self):
        for tensor in [*self.module.parameters(), *self.module.buffers()]:
            if tensor.is_floating_point():
                dist.broadcast(tensor.data, src=0)


# %% wrong values: frozen parameters get zeros
# says: must have no gradient
class BucketedDDP(_Base):
    def sync_gradients(self):
        super().sync_gradients()
        for param in self.module.parameters():
            if param.grad is None:
                param.grad = torch.zeros_like(param)


# %% wrong bytes, order: a barrier before each bucket
# says: barrier among them
class BucketedDDP(_Base):
    def launch(self):
        dist.barrier()
        super().launch()


# %% wrong values: a bucket is full when no .grad in it is None, which old gradients are neither
class BucketedDDP(_Base):
    def launch_full(self):
        while len(self.sent) < len(self.buckets) and all(
            p.grad is not None for p in self.buckets[len(self.sent)]
        ):
            self.launch()


# %% wrong bytes: takes every element for 8 bytes when it packs
# says: the packing rule gives
class BucketedDDP(nn.Module):
    def __init__(self, module, bucket_bytes):
        super().__init__()
        self.module = module
        with torch.no_grad():
            for tensor in [*module.parameters(), *module.buffers()]:
                dist.broadcast(tensor, 0)
        self.buckets, size = [], 0
        for param in reversed(list(module.parameters())):
            if not param.requires_grad:
                continue
            nbytes = 8 * param.numel()
            if not self.buckets or size + nbytes > bucket_bytes:
                self.buckets.append([])
                size = 0
            self.buckets[-1].append(param)
            size += nbytes
        self.home = {param: number for number, bucket in enumerate(self.buckets) for param in bucket}
        for param in self.home:
            param.register_post_accumulate_grad_hook(self.ready)
        self.restart()

    def restart(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.sent = []

    def ready(self, param):
        self.missing[self.home[param]] -= 1
        while len(self.sent) < len(self.buckets) and not self.missing[len(self.sent)]:
            self.launch()

    def launch(self):
        bucket = self.buckets[len(self.sent)]
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket])
        self.sent.append((flat, dist.all_reduce(flat, async_op=True)))

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def sync_gradients(self):
        while len(self.sent) < len(self.buckets):
            self.launch()
        for bucket, (flat, work) in zip(self.buckets, self.sent):
            work.wait()
            flat /= dist.get_world_size()
            for param, piece in zip(bucket, flat.split([p.numel() for p in bucket])):
                param.grad = piece.view_as(param)
        self.restart()
