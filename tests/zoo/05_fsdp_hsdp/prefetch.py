# Answers to prefetched_step: right ones in other styles, and wrong ones with the part each must lose.
# Longer than 150 lines: what is in flight takes a loop for forward and one for backward in every style.

# %% setup
import torch
import torch.distributed as dist


class Right:
    """A step whose habits a subclass changes."""

    ahead = None  # how many units ahead; None: depth
    keep_last = True
    free = True
    wait_reduce_at_once = False
    wait_gather_at_once = False
    scale = True

    def __init__(self, units, depth):
        self.units = units
        self.depth = depth if self.ahead is None else self.ahead
        self.n = dist.get_world_size()
        self.gathers, self.reductions = {}, []

    def gather(self, unit):
        if unit.full is None:
            unit.full = unit.shard.new_empty(self.n * len(unit.shard))
            self.gathers[unit] = dist.all_gather_into_tensor(unit.full, unit.shard, async_op=True)
            if self.wait_gather_at_once:
                self.gathers.pop(unit).wait()

    def ready(self, order, i):
        for unit in order[i : i + 1 + self.depth]:
            self.gather(unit)
        if order[i] in self.gathers:
            self.gathers.pop(order[i]).wait()

    def finish(self):
        while self.reductions:
            self.reductions.pop(0)[0].wait()

    def before_reduce(self):
        self.finish()

    def reduce(self, unit, full_grad):
        unit.grad = torch.empty_like(unit.shard)
        work = dist.reduce_scatter_tensor(unit.grad, full_grad, async_op=True)
        self.reductions.append((work, full_grad))
        if self.wait_reduce_at_once:
            self.finish()

    def step(self, x, loss_grad):
        for i, unit in enumerate(self.units):
            self.ready(self.units, i)
            x = unit.forward(x)
            if self.free and not (self.keep_last and unit is self.units[-1]):
                unit.full = None
        grad, order = loss_grad(x), self.units[::-1]
        for i, unit in enumerate(order):
            self.ready(order, i)
            grad, full_grad = unit.backward(grad)
            if self.free:
                unit.full = None
            self.before_reduce()
            if full_grad is not None:
                self.reduce(unit, full_grad)
            full_grad = None
        self.finish()
        for unit in self.units if self.scale else ():
            if unit.grad is not None:
                unit.grad /= self.n
        return x


# %% right: an object that keeps the works
def prefetched_step(units, x, loss_grad, depth):
    return Right(units, depth).step(x, loss_grad)


# %% right: generators; waits for the own gather before launching the next
def prefetched_step(units, x, loss_grad, depth):
    n = dist.get_world_size()

    def launch(unit):
        unit.full = torch.empty(n * len(unit.shard), dtype=unit.shard.dtype)
        return dist.all_gather_into_tensor(unit.full, unit.shard, async_op=True)

    def whole(order):
        works, todo = {}, [unit for unit in order if unit.full is None]
        for unit in order:
            if unit.full is None:
                works[unit] = launch(todo.pop(0))
            if unit in works:
                works.pop(unit).wait()
            at = order.index(unit)
            for ahead in order[at + 1 : at + 1 + depth]:
                if ahead.full is None:
                    works[todo.pop(0)] = launch(ahead)
            yield unit

    for unit in whole(units):
        x = unit.forward(x)
        if unit is not units[-1]:
            unit.full = None
    grad, last = loss_grad(x), None
    for unit in whole(units[::-1]):
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if last is not None:
            work, owner, mine, _ = last
            work.wait()
            owner.grad = mine / n
            last = work = _ = None
        if full_grad is not None:
            mine = torch.empty_like(unit.shard)
            last = (dist.reduce_scatter_tensor(mine, full_grad, async_op=True), unit, mine, full_grad)
    if last is not None:
        last[0].wait()
        last[1].grad = last[2] / n
    return x


# %% right: divides before it sends, skips communication alone
def prefetched_step(units, x, loss_grad, depth):
    n = dist.get_world_size()
    works, sent = {}, []
    turns = list(range(len(units)))

    def launch(index):
        if 0 <= index < len(units) and units[index].full is None:
            unit = units[index]
            if n == 1:
                unit.full = unit.shard
                return
            unit.full = unit.shard.new_zeros(n * len(unit.shard))
            works[index] = dist.all_gather(list(unit.full.chunk(n)), unit.shard, async_op=True)

    for step, sign in ((turns, 1), (turns[::-1], -1)):
        if sign < 0:
            grad = loss_grad(x)
        for index in step:
            for ahead in range(depth + 1):
                launch(index + sign * ahead)
            if index in works:
                works.pop(index).wait()
            unit = units[index]
            if sign > 0:
                x = unit.forward(x)
                if index != turns[-1]:
                    unit.full = None
                continue
            grad, flat = unit.backward(grad)
            unit.full = None
            for work, _ in sent:
                work.wait()
            sent.clear()
            work = _ = None
            if flat is not None:
                flat /= n
                if n == 1:
                    unit.grad = flat
                else:
                    unit.grad = torch.zeros_like(unit.shard)
                    sent.append((dist.reduce_scatter_tensor(unit.grad, flat, async_op=True), flat))
    for work, _ in sent:
        work.wait()
    return x


# %% wrong values: does nothing
def prefetched_step(units, x, loss_grad, depth):
    return x


# %% wrong values: forgets the mean
# says: did you average?
class Answer(Right):
    scale = False


def prefetched_step(units, x, loss_grad, depth):
    return Answer(units, depth).step(x, loss_grad)


# %% wrong values: forward only
def prefetched_step(units, x, loss_grad, depth):
    step = Right(units, depth)
    for i, unit in enumerate(units):
        step.ready(units, i)
        x = unit.forward(x)
        unit.full = None
    return x


# %% wrong values: computes before the gather has arrived, and waits for nothing
def prefetched_step(units, x, loss_grad, depth):
    step = Right(units, depth)
    for unit in units:
        unit.full = unit.shard.new_zeros(step.n * len(unit.shard))
        x = unit.forward(x)
        dist.all_gather_into_tensor(unit.full, unit.shard, async_op=True).wait()
    grad = loss_grad(x)
    for unit in units[::-1]:
        grad, flat = unit.backward(grad)
        unit.full = None
        if flat is not None:
            step.reduce(unit, flat)
    step.finish()
    return x


# %% wrong values: rank 0's gradients are of its own samples only
# says: rank 0
class Answer(Right):
    def reduce(self, unit, full_grad):
        super().reduce(unit, full_grad)
        if dist.get_rank() == 0 and self.n > 1:
            self.finish()
            unit.grad = full_grad[: len(unit.shard)].clone()


def prefetched_step(units, x, loss_grad, depth):
    return Answer(units, depth).step(x, loss_grad)


# %% wrong values: divides by two, right at world size 2 only
class Answer(Right):
    scale = False


def prefetched_step(units, x, loss_grad, depth):
    out = Answer(units, depth).step(x, loss_grad)
    for unit in units:
        if unit.grad is not None:
            unit.grad /= min(2, dist.get_world_size())
    return out


# %% wrong values: rank 1 prefetches in another order
# says: rank 1
class Answer(Right):
    def ready(self, order, i):
        window = order[i : i + 1 + self.depth]
        for unit in window[::-1] if dist.get_rank() == 1 else window:
            self.gather(unit)
        if order[i] in self.gathers:
            self.gathers.pop(order[i]).wait()


def prefetched_step(units, x, loss_grad, depth):
    return Answer(units, depth).step(x, loss_grad)


# %% wrong values: rank 0 skips the last reduction
# says: rank 0
class Answer(Right):
    def reduce(self, unit, full_grad):
        if dist.get_rank() or unit is not self.units[0]:
            super().reduce(unit, full_grad)
        else:
            unit.grad = torch.zeros_like(unit.shard)


def prefetched_step(units, x, loss_grad, depth):
    return Answer(units, depth).step(x, loss_grad)


# %% wrong order, clock: no prefetch, whatever depth says
# says: must be launched; it was not
class Answer(Right):
    ahead = 0


def prefetched_step(units, x, loss_grad, depth):
    return Answer(units, depth).step(x, loss_grad)


# %% wrong order: hard-coded for depth 1
class Answer(Right):
    ahead = 1


def prefetched_step(units, x, loss_grad, depth):
    return Answer(units, min(depth, 1)).step(x, loss_grad) if depth else Right(units, 0).step(x, loss_grad)


# %% wrong order, clock: launches ahead, and waits at once
# says: must be in flight; it was awaited
class Answer(Right):
    wait_gather_at_once = True


def prefetched_step(units, x, loss_grad, depth):
    return Answer(units, depth).step(x, loss_grad)


# %% wrong order, clock: awaits the reduction at once
# says: must not be awaited before the next unit's backward
class Answer(Right):
    wait_reduce_at_once = True


def prefetched_step(units, x, loss_grad, depth):
    return Answer(units, depth).step(x, loss_grad)


# %% wrong order, clock: awaits the reduction just before the next backward
class Answer(Right):
    def ready(self, order, i):
        super().ready(order, i)
        self.finish()


def prefetched_step(units, x, loss_grad, depth):
    return Answer(units, depth).step(x, loss_grad)


# %% wrong memory, clock: gathers every unit up front
class Answer(Right):
    def ready(self, order, i):
        for unit in order:
            if unit.full is None and i == 0:
                self.gather(unit)
        if order[i] in self.gathers:
            self.gathers.pop(order[i]).wait()


def prefetched_step(units, x, loss_grad, depth):
    return Answer(units, depth).step(x, loss_grad)


# %% wrong memory, order, clock: never reshards between forward and backward
# says: at most
class Answer(Right):
    free = False


def prefetched_step(units, x, loss_grad, depth):
    out = Answer(units, depth).step(x, loss_grad)
    for unit in units:
        unit.full = None
    return out


# %% wrong memory: one unit further ahead than asked
class Answer(Right):
    def __init__(self, units, depth):
        super().__init__(units, depth + 1)


def prefetched_step(units, x, loss_grad, depth):
    return Answer(units, depth).step(x, loss_grad)


# %% wrong memory: keeps whole gradients until all are reduced
class Answer(Right):
    def before_reduce(self):
        pass


def prefetched_step(units, x, loss_grad, depth):
    return Answer(units, depth).step(x, loss_grad)


# %% wrong bytes: frees the last unit and gathers it again
class Answer(Right):
    keep_last = False


def prefetched_step(units, x, loss_grad, depth):
    return Answer(units, depth).step(x, loss_grad)


# %% wrong bytes: all_reduces instead of reduce_scatter
# says: all_reduce
class Answer(Right):
    def reduce(self, unit, full_grad):
        work = dist.all_reduce(full_grad, async_op=True)
        self.reductions.append((work, full_grad, unit))

    def finish(self):
        while self.reductions:
            work, full_grad, unit = self.reductions.pop(0)
            work.wait()
            unit.grad = full_grad.chunk(self.n)[dist.get_rank()].clone()


def prefetched_step(units, x, loss_grad, depth):
    return Answer(units, depth).step(x, loss_grad)


# %% wrong values: the library's own
# says: is closed here
def prefetched_step(units, x, loss_grad, depth):
    from course_lib.parallel.fsdp import FSDP as Ready

    return Ready(units[0]._template, prefetch=depth)(x)


# %% wrong values: torch's, through getattr
# says: is closed here
import torch.distributed.fsdp


def prefetched_step(units, x, loss_grad, depth):
    return getattr(torch.distributed.fsdp, "fully" + "_shard")(units[0]._template)


# %% wrong memory, order, clock: keeps the parameters from forward to backward, in numpy
def prefetched_step(units, x, loss_grad, depth):
    stash = {}

    class Stash(Right):
        def gather(self, unit):
            if unit in stash:
                unit.full = torch.from_numpy(stash[unit])
            else:
                super().gather(unit)

        def ready(self, order, i):
            super().ready(order, i)
            stash[order[i]] = order[i].full.numpy().copy()

    return Stash(units, depth).step(x, loss_grad)


# %% wrong order, clock: prefetches in forward only
def prefetched_step(units, x, loss_grad, depth):
    class Forward(Right):
        def ready(self, order, i):
            self.depth = depth if order is self.units else 0
            super().ready(order, i)

    return Forward(units, depth).step(x, loss_grad)


# %% wrong order, clock: prefetches in backward only
def prefetched_step(units, x, loss_grad, depth):
    class Backward(Right):
        def ready(self, order, i):
            self.depth = 0 if order is self.units else depth
            super().ready(order, i)

    return Backward(units, depth).step(x, loss_grad)


# %% wrong order, clock: waits for all that is in flight whenever one is needed
def prefetched_step(units, x, loss_grad, depth):
    class All(Right):
        def ready(self, order, i):
            for unit in order[i : i + 1 + self.depth]:
                self.gather(unit)
            while self.gathers:
                self.gathers.popitem()[1].wait()

    return All(units, depth).step(x, loss_grad)


# %% wrong order: polls
# says: is_completed
import time


def prefetched_step(units, x, loss_grad, depth):
    class Poll(Right):
        def ready(self, order, i):
            for unit in order[i : i + 1 + self.depth]:
                self.gather(unit)
            if order[i] in self.gathers:
                while not self.gathers[order[i]].is_completed():
                    time.sleep(0.002)
                self.gathers.pop(order[i]).wait()

    return Poll(units, depth).step(x, loss_grad)


# %% wrong memory, order, clock: gathers all up front and hides it in numpy
def prefetched_step(units, x, loss_grad, depth):
    stash = {}
    for unit in units:
        Right(units, 0).ready([unit], 0)
        stash[unit], unit.full = unit.full.numpy().copy(), None

    class Stash(Right):
        def gather(self, unit):
            if unit in stash:
                unit.full = torch.from_numpy(stash.pop(unit))
            else:
                super().gather(unit)

    return Stash(units, depth).step(x, loss_grad)


# %% right: gathers the first unit of backward's second before the last forward
def prefetched_step(units, x, loss_grad, depth):
    right = Right(units, depth)
    turns = [*units, *units[-2::-1]] if depth else list(units)
    for i, unit in enumerate(units):
        right.ready(turns, i)
        x = unit.forward(x)
        if unit is not units[-1]:
            unit.full = None
    grad, order = loss_grad(x), units[::-1]
    for i, unit in enumerate(order):
        right.ready(order, i)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        right.finish()
        if full_grad is not None:
            right.reduce(unit, full_grad)
        full_grad = None
    right.finish()
    for unit in units:
        if unit.grad is not None:
            unit.grad.div_(right.n)
    return x


# %% right: deques, lists of pieces; waits for a reduction after the next is launched
from collections import deque


def prefetched_step(units, x, loss_grad, depth):
    n, here, going = dist.get_world_size(), {}, deque()

    def fetch(unit):
        if unit not in here:
            pieces = [torch.empty_like(unit.shard) for _ in range(n)]
            here[unit] = (dist.all_gather(pieces, unit.shard, async_op=True), pieces)

    def visit(order):
        for i, unit in enumerate(order):
            for near in order[i : i + depth + 1]:
                if near.full is None:
                    fetch(near)
            if unit.full is None:
                work, pieces = here.pop(unit)
                work.wait()
                unit.full = torch.cat(pieces)
                work = pieces = None
            yield unit

    def land():
        unit, work, _ = going.popleft()
        work.wait()
        unit.grad.mul_(1 / n)

    for unit in visit(units):
        x = unit.forward(x)
        if unit is not units[-1]:
            unit.full = None
    grad = loss_grad(x)
    for unit in visit(units[::-1]):
        grad, flat = unit.backward(grad)
        unit.full = None
        if flat is not None:
            unit.grad = torch.zeros_like(unit.shard)
            work = dist.reduce_scatter(unit.grad, list(flat.chunk(n)), async_op=True)
            going.append((unit, work, flat))
            if len(going) > 1:
                land()
        flat = work = None
    while going:
        land()
    return x


# %% wrong memory: in backward a unit is freed when its reduction has been awaited
# says: units of
def prefetched_step(units, x, loss_grad, depth):
    n = dist.get_world_size()
    works = {}

    def fetch(order, i):
        for unit in order[i : i + 1 + depth]:
            if unit.full is None:
                unit.full = unit.shard.new_empty(n * len(unit.shard))
                works[id(unit)] = dist.all_gather_into_tensor(unit.full, unit.shard, async_op=True)
        work = works.pop(id(order[i]), None)
        if work is not None:
            work.wait()

    for i, unit in enumerate(units):
        fetch(units, i)
        x = unit.forward(x)
        if unit is not units[-1]:
            unit.full = None
    grad = loss_grad(x)
    behind = None
    back = units[::-1]
    for i, unit in enumerate(back):
        fetch(back, i)
        grad, full_grad = unit.backward(grad)
        if behind is not None:
            behind[1].wait()
            behind[0].full = None
            behind = None
        if full_grad is None:
            unit.full = None
        else:
            unit.grad = torch.empty_like(unit.shard)
            work = dist.reduce_scatter_tensor(unit.grad, full_grad, async_op=True)
            behind = (unit, work, full_grad)
            del work
        del full_grad
    if behind is not None:
        behind[1].wait()
        behind[0].full = None
    for unit in units:
        if unit.grad is not None:
            unit.grad /= n
    return x
