"""Train a small model three steps; the answer updates it on a host with an account of its link.

impl(params, store, update); `host_store` has the store. Marks: "built", and of step t "begin t" (backward is
over), "called t" (the answer has returned) and "end t" (gradients are forgotten).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from course_grader.exercise import Array
from course_grader.inside.host_store import HostStore, State, host_adam
from course_grader.inside.probe import Probe
from course_grader.inside.toy_models import build_toy, trainable
from course_grader.inside.zero_toy_models import STEPS, loss_of, weights_of


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Return the weights and the host's state after each step, and the log of the link, step by step."""
    model = build_toy(params["model"], inputs)
    store = HostStore(trainable(model))
    for tensor in inputs.values():
        tensor.sum()  # the trace sees what exists before "built"
    probe.mark("built")

    def update(state: State, grad: Tensor, step: int) -> None:
        on_device = [t for p in trainable(model) for t in (p, p.grad) if t is not None]
        store.note_update(grad, state, on_device)
        host_adam(state, grad, step)

    seen: dict[str, Array] = {}
    logs = []
    for step in range(STEPS):
        loss_of(model, inputs, step, 0, 1).backward()
        probe.mark(f"begin {step}")
        impl(trainable(model), store, partial(update, step=step + 1))
        probe.mark(f"called {step}")
        logs.append(store.log)
        store.log = []
        model.zero_grad()
        probe.mark(f"end {step}")
        seen |= weights_of(model, step) | _state_of(store, step)
    return {**{name: torch.from_numpy(array) for name, array in seen.items()}, "logs": logs}


def _state_of(store: HostStore, step: int) -> dict[str, Array]:
    return {
        f"store.state[{i}]['{name}'] after step {step}": tensor.detach().numpy().copy()
        for i, state in enumerate(store.state)
        for name, tensor in state.items()
    }
