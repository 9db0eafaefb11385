"""OffloadedOptimizer against the same optimizer on the device."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.checkpoint import full_state_dict
from course_lib.model.batches import shard_slice
from course_lib.parallel.fsdp import FSDP
from course_lib.parallel.offload import HostLink, OffloadedOptimizer
from course_lib.parallel.zero import ZeroOptimizer
from course_lib.ranks import run_ranks

OPTIMIZERS: list[tuple[Any, dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (torch.optim.Adam, {"lr": 0.01}),
    (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
]


def net(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3), nn.Linear(3, 3))
    model[3].requires_grad_(False)
    return model.to(dtype)


def data(step: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(12, 5, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randn(12, 3, generator=generator, dtype=torch.float64).to(dtype)


def groups(model: nn.Module) -> list[dict[str, Any]]:
    params = list(model.parameters())
    return [{"params": params[:1], "lr": 0.05}, {"params": params[1:]}]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for step in steps:
        x, y = data(step)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize(("make", "defaults"), OPTIMIZERS)
def test_steps_like_the_optimizer_on_the_device(make: Any, defaults: dict[str, Any]) -> None:
    want, got = net(), net()
    train(want, make(groups(want), **defaults), range(3))
    train(got, OffloadedOptimizer(groups(got), make, **defaults), range(3))
    for a, b in zip(got.parameters(), want.parameters(), strict=True):
        assert torch.equal(a, b)


def test_bytes_on_the_link_and_on_the_host() -> None:
    model = net()
    optimizer = OffloadedOptimizer(model.parameters(), torch.optim.Adam)
    before = optimizer.link.down_bytes, optimizer.link.up_bytes, optimizer.link.num_transfers
    assert before == (8 * 78, 0, 6)  # the masters: 5*7+7 + 7*3+3 + 3*3+3 parameters
    F.mse_loss(model(data(0)[0]), data(0)[1]).backward()
    optimizer.step()
    link = optimizer.link
    assert (link.down_bytes - before[0], link.up_bytes, link.num_transfers - 6) == (8 * 66, 8 * 66, 8)
    assert optimizer.host_bytes == 8 * (78 + 2 * 66) + 4 * 4  # masters, two moments, four float32 steps


def test_bfloat16_travels_and_float32_stays() -> None:
    model = net(torch.bfloat16)
    optimizer = OffloadedOptimizer(model.parameters(), torch.optim.SGD, lr=1e-4, master_dtype=torch.float32)
    down = optimizer.link.down_bytes
    start = optimizer._masters[0].detach().clone()
    for _ in range(4):
        optimizer.zero_grad()
        F.mse_loss(model(data(0, torch.bfloat16)[0]), data(0, torch.bfloat16)[1]).backward()
        optimizer.step()
    assert optimizer.link.down_bytes - down == optimizer.link.up_bytes == 4 * 2 * 66
    assert not torch.equal(optimizer._masters[0], start)  # steps too small for bfloat16 add up
    assert torch.equal(model[0].weight, optimizer._masters[0].bfloat16())


def test_state_goes_from_and_to_the_plain_optimizer() -> None:
    want, got = net(), net()
    plain = torch.optim.Adam(want.parameters())
    train(want, plain, range(2))
    got.load_state_dict(want.state_dict())
    offloaded = OffloadedOptimizer(got.parameters(), torch.optim.Adam)
    offloaded.load_state_dict(plain.state_dict())
    again = net()
    again.load_state_dict(want.state_dict())
    third = OffloadedOptimizer(again.parameters(), torch.optim.Adam)
    third.load_state_dict(offloaded.state_dict())
    for model, optimizer in ((want, plain), (got, offloaded), (again, third)):
        train(model, optimizer, range(2, 4))
    for a, b, c in zip(got.parameters(), want.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(c, b)


def test_parameters_changed_by_others_are_noticed() -> None:
    model = net()
    optimizer = OffloadedOptimizer(model.parameters(), torch.optim.SGD)
    model.load_state_dict(model.state_dict())
    model(data(0)[0]).sum().backward()
    with pytest.raises(ValueError, match=r"got changes of \[0, 1, 2, 3, 4, 5\]"):
        optimizer.step()
    optimizer.refresh_masters()
    optimizer.step()
    with pytest.raises(ValueError, match="needs parameters"):
        OffloadedOptimizer([], torch.optim.SGD)


def test_the_state_of_another_model_is_refused() -> None:
    saved = OffloadedOptimizer(nn.Linear(3, 4).parameters(), torch.optim.Adam)
    plain = torch.optim.Adam(nn.Linear(3, 4).parameters())
    for optimizer in (saved, plain):
        for param in getattr(optimizer, "_params", optimizer.param_groups[0]["params"]):
            param.grad = torch.ones_like(param)
        optimizer.step()
    want = r"must be of this model; got shapes: 0 \[4, 3\] for \[3, 3\], 1 \[4\] for \[3\]"
    for state in (saved.state_dict(), plain.state_dict()):
        with pytest.raises(ValueError, match=want):
            OffloadedOptimizer(nn.Linear(3, 3).parameters(), torch.optim.Adam).load_state_dict(state)
    state = saved.state_dict()
    state["masters"].append(torch.ones(1))
    with pytest.raises(ValueError, match="got 3 master weights for 2"):
        saved.load_state_dict(state)


def train_sharded(kind: str) -> dict[str, Tensor]:
    model: Any = net()
    adam = partial(OffloadedOptimizer, optimizer_class=torch.optim.Adam, lr=0.01)
    if kind == "fsdp":
        model = FSDP(model, [model[0], model[2]])
        optimizer: Any = adam(model.parameters())
    else:
        optimizer = ZeroOptimizer(model.parameters(), adam, stage=2, bucket_bytes=100)
    mine = shard_slice(12, dist.get_rank(), dist.get_world_size())
    for step in range(3):
        x, y = data(step)
        optimizer.zero_grad()
        F.mse_loss(model(x[mine]), y[mine]).backward()
        optimizer.step()
    state = full_state_dict(model) if kind == "fsdp" else model.state_dict()
    return {name: tensor.detach().clone() for name, tensor in state.items()}


@pytest.mark.parametrize("kind", ["fsdp", "zero"])
def test_composes_with_shards(kind: str) -> None:
    want = net()
    optimizer = torch.optim.Adam(want.parameters(), lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        F.mse_loss(want(data(step)[0]), data(step)[1]).backward()
        optimizer.step()
    for got in run_ranks(train_sharded, 3, kind):
        for name, tensor in want.state_dict().items():
            torch.testing.assert_close(got[name], tensor)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    want, got = net().cuda(), net().cuda()
    plain = torch.optim.Adam(want.parameters(), lr=0.01)
    offloaded = OffloadedOptimizer(got.parameters(), torch.optim.Adam, lr=0.01)
    for step in range(5):
        for model, optimizer in ((want, plain), (got, offloaded)):
            optimizer.zero_grad()
            F.mse_loss(model(data(step)[0].cuda()), data(step)[1].cuda()).backward()
            optimizer.step()
    assert all(value.device.type == "cpu" for s in offloaded.state.values() for value in s.values())
    for a, b in zip(got.parameters(), want.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_the_next_gradient_travels_while_the_host_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def noted(name: str, call: Any) -> Any:
        def wrapper(*args: Any) -> Any:
            order.append(name)
            return call(*args)

        return wrapper

    model = net()
    optimizer = OffloadedOptimizer(model.parameters(), torch.optim.Adam)
    F.mse_loss(model(data(0)[0]), data(0)[1]).backward()
    for name in ("down", "up"):
        monkeypatch.setattr(optimizer.link, name, noted(name, getattr(optimizer.link, name)))
    monkeypatch.setattr(optimizer.inner, "step", noted("update", optimizer.inner.step))
    optimizer.step()
    assert order == [
        "down",
        "down",
        "update",
        "up",
        "down",
        "update",
        "up",
        "down",
        "update",
        "up",
        "update",
        "up",
    ]


def test_copies_run_beside_the_program() -> None:
    link = HostLink(torch.device("cpu"))
    source = torch.arange(4.0)
    target, arrived = link.down(source)
    arrived()
    assert torch.equal(target, source)
    assert target.data_ptr() != source.data_ptr()
