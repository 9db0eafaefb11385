"""What one writes around torch's DDP, ZeroRedundancyOptimizer and FSDP2, around ours: as in one process."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.checkpoint.fsdp import full_state_dict, load_optimizer_state_dict_, optimizer_state_dict
from course_lib.checkpoint.zero import full_state_dict as full_zero_state
from course_lib.parallel.ddp import BucketedDDP, NaiveDDP
from course_lib.parallel.fsdp import FSDP
from course_lib.parallel.offload import OffloadedOptimizer
from course_lib.parallel.zero import ZeroOptimizer
from course_lib.ranks import RanksError, run_ranks

SAMPLES, STEPS = 8, 3
State = dict[str, Tensor]
Part = tuple[nn.Module, torch.optim.Optimizer, Callable[[], State]]
Make = Callable[[nn.Module], Part]


class Net(nn.Module):
    """Matrices, vectors, a scalar, a norm, and, if tied, the first matrix again at the end."""

    def __init__(self, tied: bool = False, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Linear(5, 6, bias=False)
        self.blocks = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 5, bias=False)
        self.gain = nn.Parameter(torch.tensor(3.0))
        if tied:
            self.head.weight = nn.Parameter(self.embed.weight.detach().t().contiguous())
            self.embed.weight = self.head.weight
            self.embed.forward = lambda x: x @ self.head.weight  # type: ignore[method-assign]
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + torch.tanh(block(h))
        return self.head(self.norm(h)) * self.gain


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x, y = torch.randn(2, SAMPLES, 5, generator=generator, dtype=torch.float64)
    if not dist.is_initialized():
        return x, y
    return tuple(full.chunk(dist.get_world_size())[dist.get_rank()] for full in (x, y))  # type: ignore[return-value]


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """Weight decay for matrices only, as everybody writes it."""
    params = list(model.parameters())
    return [
        {"params": [p for p in params if p.ndim >= 2], "weight_decay": 0.3},
        {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0},
    ]


def groups_by_name(model: nn.Module) -> list[dict[str, Any]]:
    named = dict(model.named_parameters())
    spared = [name for name in named if name.endswith("bias") or "norm" in name or name == "gain"]
    return [
        {"params": [p for name, p in named.items() if name not in spared], "weight_decay": 0.3},
        {"params": [named[name] for name in spared], "weight_decay": 0.0},
    ]


def adamw(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=0.05)


# ---- the parallel trainings


def plain(net: nn.Module) -> Part:
    return net, adamw(groups(net)), lambda: dict(net.state_dict())


def ddp(net: nn.Module, wrap: Any = BucketedDDP) -> Part:
    model = wrap(net)
    return model, adamw(groups(model)), lambda: dict(net.state_dict())


def zero(net: nn.Module, stage: Any, bucket_bytes: int = 200) -> Part:
    optimizer = ZeroOptimizer(groups(net), torch.optim.AdamW, stage=stage, bucket_bytes=bucket_bytes, lr=0.05)
    return net, optimizer, lambda: dict(net.state_dict())


def ddp_and_zero(net: nn.Module, wrap: Any, bucket_bytes: int) -> Part:
    """torch's usual pair."""
    model = wrap(net)
    _, optimizer, state = zero(net, 1, bucket_bytes)
    return model, optimizer, state


def zero_and_ddp(net: nn.Module) -> Part:
    _, optimizer, state = zero(net, 1)
    return BucketedDDP(net, 300), optimizer, state


def fsdp(net: nn.Module, by_name: bool = False, **options: Any) -> Part:
    model = FSDP(net, net.blocks, **options)  # type: ignore[arg-type]
    optimizer = adamw(groups_by_name(model) if by_name else groups(model))
    return model, optimizer, lambda: full_state_dict(model)


small_buckets = partial(BucketedDDP, bucket_bytes=300)
MAKES: dict[str, Make] = {
    "naive": partial(ddp, wrap=NaiveDDP),
    "ddp": partial(ddp, wrap=small_buckets),
    "zero1": partial(zero, stage=1),
    "zero2": partial(zero, stage=2),
    "ddp+zero1": partial(ddp_and_zero, wrap=small_buckets, bucket_bytes=200),
    "ddp+zero1, large buckets": partial(ddp_and_zero, wrap=BucketedDDP, bucket_bytes=25 * 2**20),
    "naive+zero1": partial(ddp_and_zero, wrap=NaiveDDP, bucket_bytes=200),
    "torch's ddp+zero1": partial(ddp_and_zero, wrap=nn.parallel.DistributedDataParallel, bucket_bytes=200),
    "torch's ddp with views+zero1": partial(
        ddp_and_zero,
        wrap=partial(nn.parallel.DistributedDataParallel, gradient_as_bucket_view=True),
        bucket_bytes=200,
    ),
    "zero1+ddp": zero_and_ddp,
    "fsdp": fsdp,
    "fsdp, groups by name": partial(fsdp, by_name=True),
    "fsdp, not resharded": partial(fsdp, reshard_after_forward=False, prefetch=0),
}


# ---- the idioms


def simple(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> Any:
    optimizer.zero_grad()
    x, y = batch(step)
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


def clipped(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, **how: Any) -> float:
    model.zero_grad()
    x, y = batch(step)
    nn.functional.mse_loss(model(x), y).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1, **how)
    optimizer.step()
    return norm.item()


def clipped_by_the_optimizers_parameters(
    model: nn.Module, optimizer: torch.optim.Optimizer, step: int
) -> float:
    optimizer.zero_grad()
    x, y = batch(step)
    nn.functional.mse_loss(model(x), y).backward()
    params = [p for group in optimizer.param_groups for p in group["params"]]
    norm = nn.utils.clip_grad_norm_(params, 0.1)
    optimizer.step()
    return norm.item()


def clipped_by_value(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    optimizer.zero_grad()
    x, y = batch(step)
    nn.functional.mse_loss(model(x), y).backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.01)
    optimizer.step()


def accumulated(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> float:
    """Micro-batches without no_sync, and zero_grad(set_to_none=False) of the model."""
    model.zero_grad(set_to_none=step % 2 == 0)
    x, y = batch(step)
    for x_part, y_part in zip(x.chunk(2), y.chunk(2), strict=True):
        (nn.functional.mse_loss(model(x_part), y_part) / 2).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    return norm.item()


def two_forwards(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Two forwards, one backward; then a third forward whose backward comes after a fourth's."""
    optimizer.zero_grad()
    (x, y), (x2, y2) = batch(step), batch(step + 100)
    first, second = model(x), model(x2)
    (nn.functional.mse_loss(first, y) + nn.functional.mse_loss(second, y2)).backward()
    third = nn.functional.mse_loss(model(x2), y)
    nn.functional.mse_loss(model(x), y2).backward()
    third.backward()
    optimizer.step()


def scaled(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, unscale: bool) -> list[float]:
    """Three scaled steps; in the second an inf, in the data of the last rank only."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scales = []
    for inner in range(3):
        optimizer.zero_grad()
        x, y = batch(10 * step + inner)
        if inner == 1 and (not dist.is_initialized() or dist.get_rank() == dist.get_world_size() - 1):
            y = y.clone()
            y[-1, 0] = float("inf")
        scaler.scale(nn.functional.mse_loss(model(x), y)).backward()
        if unscale:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


IDIOMS: dict[str, Callable[..., Any]] = {
    "simple": simple,
    "clipped": clipped,
    "clipped, inf": partial(clipped, norm_type=float("inf")),
    "clipped, foreach": partial(clipped, foreach=True),
    "clipped by the optimizer's parameters": clipped_by_the_optimizers_parameters,
    "clipped by value": clipped_by_value,
    "accumulated": accumulated,
    "two forwards": two_forwards,
    "scaled": partial(scaled, unscale=False),
    "unscaled and clipped": partial(scaled, unscale=True),
}


def train(make: Make, tied: bool, skipped: tuple[str, ...]) -> dict[str, tuple[list[Any], State]]:
    """Run every idiom for some steps, from a fresh model each."""
    results = {}
    for name, idiom in IDIOMS.items():
        if name not in skipped:
            model, optimizer, state = make(Net(tied, seed=dist.get_rank() if dist.is_initialized() else 0))
            said = [idiom(model, optimizer, step) for step in range(STEPS)]
            results[name] = said, {key: value.detach().clone() for key, value in state().items()}
    return results


def assert_same(got: State, want: State, what: str) -> None:
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        torch.testing.assert_close(got[name], tensor, msg=lambda text, name=name: f"{what}, {name}: {text}")


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("name", MAKES)
def test_idioms_train_as_in_one_process(name: str, tied: bool) -> None:
    skipped = ("two forwards",) if name.startswith("torch's") else ()
    want = train(plain, tied, skipped)
    for results in run_ranks(train, 2, MAKES[name], tied, skipped):
        for idiom, (said, state) in want.items():
            got_said, got_state = results[idiom]
            torch.testing.assert_close(got_said, said, msg=lambda text, idiom=idiom: f"{idiom}: {text}")
            assert_same(got_state, state, idiom)


# ---- other silent cases


def loads_between_steps(offloads: bool) -> tuple[Tensor, Tensor, Tensor]:
    """A later load_state_dict must not be undone by the masters in the optimizer."""
    model = nn.Linear(3, 3, bias=False).bfloat16()
    make = partial(OffloadedOptimizer, optimizer_class=torch.optim.SGD) if offloads else torch.optim.SGD
    how = {} if offloads else {"master_dtype": torch.float32}
    optimizer = ZeroOptimizer(model.parameters(), make, lr=0.5, **how)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 3, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        after = model.weight.detach().clone()
        model.load_state_dict({"weight": torch.full((3, 3), 8.0)})
    masters = full_zero_state(optimizer)["state"].get(0, {}).get("master", model.weight.detach())
    return after, masters.bfloat16(), model.weight.detach()


@pytest.mark.parametrize("offloads", [False, True])
def test_zero_takes_over_what_is_loaded_into_the_model(offloads: bool) -> None:
    for after, saved, weight in run_ranks(loads_between_steps, 2, offloads):
        torch.testing.assert_close(after, torch.full((3, 3), 7.5, dtype=torch.bfloat16))
        torch.testing.assert_close(saved, weight)
        assert weight.eq(8.0).all()


def plain_states(net: nn.Module) -> list[Any]:
    """The state dicts of a plain optimizer: fresh, and after two steps."""
    optimizer = adamw(groups(net))
    states = [copy.deepcopy(optimizer.state_dict())]
    for step in range(2):
        simple(net, optimizer, step)
    return [*states, optimizer.state_dict()]


def resume_from_plain(state: Any) -> tuple[list[str], State]:
    model, optimizer, full_state = fsdp(Net())
    simple(model, optimizer, 7)
    load_optimizer_state_dict_(model, optimizer, state)
    simple(model, optimizer, 8)
    assert optimizer_state_dict(model, optimizer)["state"].keys() == dict(model.named_parameters()).keys()
    return [name for name, _ in model.named_parameters()], full_state()


def test_fsdp_resumes_from_the_state_of_a_plain_optimizer() -> None:
    for state in plain_states(Net()):
        net = Net()
        model, optimizer, _ = plain(net)
        simple(model, optimizer, 7)
        optimizer.load_state_dict(copy.deepcopy(state))
        simple(model, optimizer, 8)
        for names, got in run_ranks(resume_from_plain, 2, state):
            assert names == [name for name, _ in net.named_parameters()]
            assert_same(got, dict(net.state_dict()), "resumed")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["ddp", "zero1", "zero2", "fsdp"])
def test_other_precisions_train_as_in_one_process_within_their_rounding(
    name: str, dtype: torch.dtype
) -> None:
    want = low_precision(plain, dtype)
    for got in run_ranks(low_precision, 2, MAKES[name], dtype):
        for key, tensor in want.items():
            torch.testing.assert_close(got[key], tensor, atol=40 * torch.finfo(dtype).eps, rtol=0)


def low_precision(make: Make, dtype: torch.dtype) -> State:
    model, _, state = make(Net().to(dtype))
    x, y = (tensor.to(dtype) for tensor in batch(0))
    nn.functional.mse_loss(model(x), y).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return {"norm": norm.double() / 100, **state()}


def only_under_no_sync() -> None:
    ddp = BucketedDDP(nn.Linear(2, 2))
    optimizer = ZeroOptimizer(ddp.parameters(), torch.optim.SGD)
    with ddp.no_sync():
        ddp(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def fsdp_only_under_no_sync() -> None:
    model = FSDP(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters())
    with model.no_sync():
        model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def stage_2_in_ddp() -> None:
    ddp = BucketedDDP(nn.Linear(2, 2))
    ZeroOptimizer(ddp.parameters(), torch.optim.SGD, stage=2)
    ddp(torch.ones(1, 2)).sum().backward()


def reads_a_sharded_gradient() -> None:
    model = nn.Linear(2, 2)
    ZeroOptimizer(model.parameters(), torch.optim.SGD, stage=2)
    model(torch.ones(1, 2)).sum().backward()
    assert model.weight.grad is not None
    model.weight.grad.sum()


def second_optimizer() -> None:
    model = nn.Linear(2, 2)
    ZeroOptimizer(model.parameters(), torch.optim.SGD)
    optimizer = torch.optim.SGD(model.parameters())
    model(torch.ones(1, 2) * dist.get_rank()).sum().backward()
    optimizer.step()


MISUSES: dict[str, Callable[[], Any]] = {
    "stepped by it alone; got a step of a SGD that holds them too": second_optimizer,
    "must be averaged over the ranks before the optimizer steps": only_under_no_sync,
    "got those of weight and others unsent. Run the last": fsdp_only_under_no_sync,
    "got a model in DDP, which keeps them whole": stage_2_in_ddp,
    "got a call of sum for one that lies in shards": reads_a_sharded_gradient,
}


@pytest.mark.parametrize(("says", "misuse"), MISUSES.items(), ids=range(len(MISUSES)))
def test_misuse_is_named(says: str, misuse: Callable[[], Any]) -> None:
    with pytest.raises(RanksError, match=says):
        run_ranks(misuse, 2, quiet=True)
