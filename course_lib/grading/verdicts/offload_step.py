"""`offload_step`: the optimizer's state and work on the host; gradients go down, parameters come up."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from course_lib.grading.exercise import Array, Case, Exercise, Part, RankData, Want
from course_lib.grading.host_store import BETA1, BETA2, EPSILON, LR
from course_lib.grading.measure import between
from course_lib.grading.toys import ToyNet, build_toy, trainable
from course_lib.grading.zero_oracle import CLOSED, zero_case, zero_inputs
from course_lib.grading.zero_toys import STEPS, loss_of, weights_of

EXERCISE = Exercise(
    id="offload_step",
    lab="04_zero",
    order=6,
    symbol="offload_step",
    title="Offload the optimizer to the host",
    minutes=25,
    difficulty=3,
    importance=3,
    lines=12,
    points={"values": 2.0, "bytes": 1.0, "memory": 1.0, "order": 1.0},
    graded="Values, at 1 and 2 ranks (hidden: 3), each by itself: after each of three steps the weights and "
    "the host's state equal Adam's. Bytes: a step sends each gradient down once and each new parameter "
    "up once, P elements each way, and nothing else; `update` gets host tensors only. Memory: during a "
    "call at most 6 of the largest parameter live at once on device and host beyond what lived before "
    "it, and after it nothing new. Order: when a gradient is waited for, the next one is on its way, "
    "and no parameter is waited for before the last gradient has arrived.",
    closed=CLOSED,
    signature="(params, store, update) -> None",
    hints=(
        "Write it first without overlap: down, wait, update, up, wait, one parameter after the other. Then "
        "ask what the link does while the host computes.",
        "Keep one gradient ahead: begin the transfer of gradient i + 1 before you wait for gradient i. "
        "Collect the transfers of parameters in a list.",
        "coming = store.down(params[0].grad) before the loop. In it: begin the next one, wait for this one, "
        "update, append store.up(...). Wait for the list at the end. One ahead, not all: host buffers cost "
        "memory too.",
    ),
)


def cases(seed: int, hidden: bool) -> list[Case]:
    """One rank and two, tied and frozen weights."""
    rows: list[tuple[int, dict[str, Any]]] = [(1, {}), (2, {"tied": True, "frozen": True})]
    if hidden:
        rows += [(1, {"width": 160}), (3, {"depth": 9})]
    return [zero_case(n, seed, "Adam", **model) for n, model in rows]


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """The same weights everywhere, and this rank's batches."""
    return zero_inputs(case, rank)


def oracle(case: Case) -> dict[str, Any]:
    """torch's Adam, for each rank by itself."""
    ranks = [_train(case, rank) for rank in range(case.world_size)]
    stale = [_train(case, rank, steps=0) for rank in range(case.world_size)]
    host = "the host's state is as it was: the host must update, with `update`"
    device = "the parameters are as they were: nothing came up, or it was never waited for"
    return {
        name: Want(
            [r[name] for r in ranks],
            per_rank=True,
            near={host if name.startswith("store.state") else device: [s[name] for s in stale]},
        )
        for name in ranks[0]
        if not name.startswith("frozen")
    }


def _train(case: Case, rank: int, steps: int = STEPS) -> dict[str, Array]:
    data = {k: torch.from_numpy(v) for k, v in inputs(case, rank).items()}
    model = build_toy(case.params["model"], data)
    optimizer = torch.optim.Adam(trainable(model), lr=LR, betas=(BETA1, BETA2), eps=EPSILON)
    out: dict[str, Array] = {}
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, data, step, 0, 1).backward()
        if step < steps:
            optimizer.step()
        out |= weights_of(model, step)
        for i, param in enumerate(trainable(model)):
            zero = torch.zeros_like(param)
            state = {"weight": param, "exp_avg": zero, "exp_avg_sq": zero} | optimizer.state[param]
            state.pop("step", None)
            out |= {
                f"store.state[{i}]['{name}'] after step {step}": tensor.detach().numpy().copy()
                for name, tensor in state.items()
            }
    return out


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """Read the link's account, and the trace for what lived."""
    del want
    sizes = [8 * p.numel() for p in trainable(ToyNet(**case.params["model"]))]
    return [_bytes(got, sizes), _memory(got, max(sizes)), _order(got)]


def _bytes(got: list[RankData], sizes: list[int]) -> Part:
    for rank, data in enumerate(got):
        for step, log in enumerate(data.values["logs"]):
            for kind, what in (("down", "gradient"), ("up", "parameter")):
                seen = [size for name, _, size in log if name == kind]
                if sorted(seen) != sorted(sizes):
                    text = (
                        f"a step must send each {what} {kind} once, {len(sizes)} transfers of {sum(sizes):,} "
                        f"bytes in all; step {step} on rank {rank} sent {len(seen)} of {sum(seen):,} bytes."
                    )
                    return Part("bytes", False, text)
            if any(kind == "device" for kind, _, _ in log):
                text = (
                    f"the host must update with what came down; in step {step} on rank {rank} `update` got a "
                    "tensor of the device. Give it what `store.down(...).wait()` returned, and "
                    "store.state[i]."
                )
                return Part("bytes", False, text)
    return Part("bytes", True, f"{sum(sizes):,} bytes down and up a step")


def _memory(got: list[RankData], largest: int) -> Part:
    why = "Fetch one gradient ahead, not all; the state lives in the store, nowhere else"
    peaks, left = [], []
    for data in got:
        trace = data.traced
        peaks += [
            trace.peak_bytes(start=f"begin {s}", end=f"called {s}") - trace.live_bytes_at(f"begin {s}")
            for s in range(STEPS)
        ]
        left += [trace.live_bytes_at(f"end {s}") - trace.live_bytes_at("built") for s in range(STEPS)]
    # What has arrived and is not used up lives somewhere, if not in tensors.
    peak = max([*peaks, *(_most_arrived(log) for data in got for log in data.values["logs"])])
    if peak > 6 * largest + 512:
        text = (
            f"a call may hold at most {6 * largest + 512:,} bytes more than before it; got {peak:,}. {why}."
        )
        return Part("memory", False, text)
    what = "bytes left by a step"
    return between("memory", [max(0, max(left))], 0, 512, what=what, why=why)


def _most_arrived(log: list[list[Any]]) -> int:
    """The most bytes of gradients that have arrived and whose update has not come yet.

    0 if more than gradients comes down, which costs the bytes.
    """
    coming = {number: size for kind, number, size in log if kind == "down"}
    if len(coming) != sum(kind == "update" for kind, _, _ in log):
        return 0
    arrived = most = 0
    for kind, number, size in log:
        arrived += coming.pop(number, 0) if kind == "wait" else -size if kind == "update" else 0
        most = max(most, arrived)
    return most


def _order(got: list[RankData]) -> Part:
    for rank, data in enumerate(got):
        for step, log in enumerate(data.values["logs"]):
            problem = _order_problem(log)
            if problem:
                return Part("order", False, f"{problem} (rank {rank}, step {step}).")
    return Part("order", True, "the link worked while the host computed")


def _order_problem(log: list[list[Any]]) -> str:
    downs = [number for kind, number, _ in log if kind == "down"]
    if not downs:
        return "each gradient must go down to the host; none did"
    ups = {number for kind, number, _ in log if kind == "up"}
    where = {(kind, number): place for place, (kind, number, _) in enumerate(log)}
    for this, following in pairwise(downs):
        if where.get(("wait", this), -1) < where["down", following]:
            return (
                "when a gradient is waited for, the next must be on its way; it had not been sent. Begin "
                "transfer i + 1 before waiting for i"
            )
    last = max((where.get(("wait", number), -1) for number in downs), default=-1)
    if any(where.get(("wait", number), len(log)) < last for number in ups):
        return "no parameter may be waited for before the last gradient has arrived; one was. Wait at the end"
    return ""
