"""`repair_ddp_script`: a script with many defects must run under torchrun, and train as one process would.

Values: the training is repeated in one process, with numpy, on the samples the processes say they took. So a
wrong sampler costs only the part "order".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from course_lib.grading.exercise import Array, Case, Exercise, Part, RankData, rng
from course_lib.grading.script_hints import hints

EXERCISE = Exercise(
    id="repair_ddp_script",
    lab="03_data_parallel",
    order=6,
    symbol="repair_ddp_script",
    title="Repair a DDP script",
    minutes=30,
    difficulty=3,
    importance=5,
    lines=20,
    points={"values": 2.0, "order": 1.0},
    graded="The text you return runs under torchrun with 2 processes (graded: 3) and `--gpus 0`; "
    "each process computes on its own samples alone, gradients cross in every step, and losses and "
    "parameters of every process equal those of one process that trains on the same samples. Order: each "
    "epoch deals out every sample (at most n - 1 repeats), and shuffles anew. A check takes about 3 seconds.",
    signature="()",
    hints=(
        "Repair what Python complains about first, and check after each repair: the message names the line "
        "of your text.",
        "Then read the script as torchrun runs it: it sets RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and "
        "MASTER_PORT for each "
        "process. What may the script decide itself, and what must it take from there, or from `--gpus`?",
        "What fails silently: gradients are averaged only by calling the wrapped model; a method without () "
        "does nothing; "
        "a DistributedSampler deals the same order each epoch unless it is told the epoch.",
    ),
)


_DRAWN = ("float32", "float64")


def cases(seed: int, hidden: bool) -> list[Case]:
    """One run of 2 processes; hidden: of 3. It takes seconds: torch is imported again."""
    draw = np.random.default_rng([seed, 6])
    count = 3 if hidden else 2
    params = {
        "num_processes": count,
        "seed": int(draw.integers(1, 10_000)),
        "epochs": 3,
        "batch_size": 4,
        "lr": round(float(draw.uniform(0.05, 0.2)), 3),
    }
    label = f"{count} processes"
    return [Case(world_size=1, seed=seed, params=params, label=label, trace=False, timeout_s=110.0)]


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """25 samples, which neither 2 nor 3 nor the batch divides, a noisy copy a process: (n, 25, ...)."""
    del rank
    draw, count = rng(case), case.params["num_processes"]
    clean = {"x": draw.normal(size=(25, 8)), "y": draw.normal(size=(25, 1))}
    return {key: array + 0.3 * draw.normal(size=(count, *array.shape)) for key, array in clean.items()}


def oracle(case: Case) -> dict[str, Any]:
    """The initial parameters; the training depends on the samples taken, see `verdict`.

    Drawn in float32 (and then `.double()`) or in float64: torch draws other numbers, and both are right.
    """
    return {f"_start {dtype}": _start(case.params["seed"], dtype) for dtype in _DRAWN}


def _start(seed: int, dtype: str) -> list[Array]:
    import torch

    generator_state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(*size, dtype=getattr(torch, dtype)) for size in ((8, 16), (16, 1))]
    torch.random.set_rng_state(generator_state)
    return [p.detach().double().numpy().copy() for layer in layers for p in layer.parameters()]


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """Gates: it runs and reports; then values; then the sampler."""
    run, text = got[0].values["run"], got[0].values["text"]
    failed = _run_failure(run, text) or _report_failure(case, run["reports"])
    if failed is not None:
        return [failed]
    starts = [want[f"_start {dtype}"] for dtype in _DRAWN]
    wrong, *others = (_wrong_values(case, run["reports"], start, text) for start in starts)
    if not wrong or not all(others):
        wrong = _sends_nothing(run["reports"], run["launched"])
    if wrong:
        return [Part("values", False, wrong, gate=True)]
    return [_order(case, run["reports"], text)]


def _run_failure(run: dict[str, Any], text: str) -> Part | None:
    """Why torchrun did not end well."""
    status, error = run["status"], run["error"]
    at = f"line {run['line']}: " if run.get("line") else ""
    if status == "ok":
        return None
    if status == "type":
        return Part(
            "values",
            False,
            f"the function must return the text of the script, a str; got {error}.",
            gate=True,
        )
    if status == "syntax":
        return Part("runs", False, f"the script must be Python; {at}{error}. Repair that line.", gate=True)
    if status == "port":
        why = hints(text, "port") or " Do not set MASTER_PORT, and give no init_method."
        said = "the script called at a port of its own instead of the one torchrun gave it in MASTER_PORT."
        return Part("terminates", False, said + why, gate=True)
    if status in ("idle", "timeout"):
        waits = "all processes waited and none did anything" if status == "idle" else "time ran out"
        said = f"the script did not end: {waits}. Does every process reach the same collectives?"
        return Part("terminates", False, said + hints(text, "port"), gate=True)
    who = f" on rank {run['rank']}" if run.get("rank") is not None else ""
    return Part(
        "runs", False, f"the script stopped{who}; {at}{error.rstrip('.')}.{hints(text, 'start')}", gate=True
    )


def _report_failure(case: Case, reports: list[Any]) -> Part | None:
    """Every process must have written a report of the right form."""
    for rank, report in enumerate(reports):
        text = _report_problem(case, report)
        if text:
            return Part("values", False, f"rank{rank}.json {text}", gate=True)
    counts = [len(report["steps"]) for report in reports]
    if len(set(counts)) > 1:
        text = f"every process must take the same number of steps; they took {counts}."
        return Part("values", False, text, gate=True)
    return None


def _report_problem(case: Case, report: Any) -> str:
    if report is None:
        return "is missing: every process must write one before it ends."
    try:
        epochs = [step["epoch"] for step in report["steps"]]
        sizes = [len(step["indices"]) for step in report["steps"]]
        fine = all(type(i) is int and 0 <= i < 25 for step in report["steps"] for i in step["indices"])
        fine = fine and all(isinstance(step["loss"], float) for step in report["steps"])
        shapes = [len(row) for row in report["parameters"]]
        fine = fine and all(isinstance(v, float) for row in report["parameters"] for v in row)
        device = str(report["device"])
    except (KeyError, TypeError, IndexError):
        return "must hold device, steps (epoch, indices, loss) and parameters as the script writes them."
    if not device.startswith("cpu"):
        return f"says device {device!r}; with --gpus 0 the script must train on the CPU."
    if sorted(set(epochs)) != list(range(case.params["epochs"])):
        return f"holds the epochs {sorted(set(epochs))}; --epochs {case.params['epochs']} was asked."
    if max(sizes) > case.params["batch_size"] or min(sizes) < 1:
        return f"has steps of up to {max(sizes)} samples; --batch-size {case.params['batch_size']} was asked."
    if not fine or shapes != [128, 16, 16, 1]:
        return "must hold indices of the data set, losses and parameters, all as lists of numbers."
    return ""


def _forward(w: list[Array], x: Array, y: Array) -> tuple[float, list[Array]]:
    """Loss and gradients of Linear(8, 16), tanh, Linear(16, 1) with the mean squared error."""
    hidden = np.tanh(x @ w[0].T + w[1])
    error = hidden @ w[2].T + w[3] - y
    d_out = 2 * error / error.size
    d_hidden = (d_out @ w[2]) * (1 - hidden**2)
    return float((error**2).mean()), [d_hidden.T @ x, d_hidden.sum(0), d_out.T @ hidden, d_out.sum(0)]


def _train(case: Case, reports: list[Any], start: list[Array], style: str) -> tuple[Array, list[Array]]:
    """Train in one process on the reported samples.

    Returns losses (ranks, steps) and the parameters of each rank, flattened. `style` names a mistake to make.
    """
    data, n, lr = inputs(case, 0), len(reports), case.params["lr"]

    def compute(rank: int, indices: list[int]) -> tuple[float, list[Array]]:
        return _forward(ranks[rank], data["x"][rank, indices], data["y"][rank, indices])

    ranks = [[w.copy() for w in start] for _ in range(n)]
    kept = [[np.zeros_like(w) for w in start] for _ in range(n)]
    losses = np.zeros((n, len(reports[0]["steps"])))
    for s in range(losses.shape[1]):
        batches = [report["steps"][s]["indices"] for report in reports]
        gradients = []
        for r in range(n):
            losses[r, s], own = compute(r, batches[r])
            gradients.append(own)
        for r in range(n):
            summed = [compute(r, batch)[1] for batch in batches] if "whole" in style else gradients
            mean = [np.mean([g[i] for g in summed], axis=0) for i in range(4)]
            factor = n if "sum" in style else 1 / n if "twice" in style else 1
            new = gradients[r] if "alone" in style else [factor * g for g in mean]
            # Without zero_grad DDP averages kept and new together; the kept part is the same on all ranks.
            kept[r] = [k + g for k, g in zip(kept[r], new, strict=True)] if "kept" in style else new
            ranks[r] = [w - lr * g for w, g in zip(ranks[r], kept[r], strict=True)]
    return losses, [np.concatenate([w.ravel() for w in rank]) for rank in ranks]


_STYLES = {
    "alone": "no gradient crosses the ranks: call the wrapped model, not the module inside it",
    "kept": "gradients are never cleared: zero_grad() before each backward",
    "alone kept": "no gradient crosses the ranks, and gradients are never cleared",
    "whole": "every process computes the batches of all on its own data: no gradient crosses the ranks",
    "sum": "gradients are summed instead of averaged: DDP divides by the number of processes already",
    "twice": "gradients are divided by the number of processes once more: DDP does it already",
}


def _wrong_values(case: Case, reports: list[Any], start: list[Array], text: str) -> str:
    """ "" if losses and parameters are those of one process."""
    losses = np.array([[step["loss"] for step in report["steps"]] for report in reports])
    ends = [np.concatenate([np.array(row) for row in report["parameters"]]) for report in reports]

    def equal(style: str) -> bool:
        want_losses, want_ends = _train(case, reports, start, style)
        return np.allclose(losses, want_losses, rtol=0, atol=1e-9) and all(
            np.allclose(end, want_end, rtol=0, atol=1e-9)
            for end, want_end in zip(ends, want_ends, strict=True)
        )

    if equal(""):
        return ""
    with np.errstate(all="ignore"):
        known = next((words for style, words in _STYLES.items() if equal(style)), "")
    differ = [r for r, end in enumerate(ends) if not np.allclose(end, ends[0], rtol=0, atol=1e-9)]
    want_losses, _ = _train(case, reports, start, "")
    off = np.abs(losses - want_losses)
    said = "the script ran, and did not train what one process would."
    if float(off.max()) > 1e-9:
        r, s = (int(i) for i in np.argwhere(off > 1e-9)[np.argmin(np.argwhere(off > 1e-9)[:, 1])])
        said += (
            f" First wrong loss: step {s} of rank {r}, {losses[r, s]:.6g} instead of {want_losses[r, s]:.6g}."
        )
    if differ:
        said += f" Ranks 0 and {differ[0]} end with different parameters."
    return said + (f" This is what you get if {known}." if known else "") + hints(text, "values")


def _sends_nothing(reports: list[Any], launched: list[Any]) -> str:
    """ "" if each process launched something in each step, as far as that is known."""
    for rank, (report, count) in enumerate(zip(reports, launched, strict=True)):
        if isinstance(count, int) and count < len(report["steps"]):
            return (
                f"rank {rank} took {len(report['steps'])} steps and launched {count} collectives, sends and "
                "receives: each process must compute on its own samples alone, and gradients must cross in "
                "every step."
            )
    return ""


def _order(case: Case, reports: list[Any], text: str) -> Part:
    """Every epoch deals out all samples, and in another order than the one before."""
    n, size, epochs = len(reports), 25, case.params["epochs"]
    dealt = [
        [[i for s in report["steps"] if s["epoch"] == epoch for i in s["indices"]] for report in reports]
        for epoch in range(epochs)
    ]
    for epoch, hands in enumerate(dealt):
        together = [i for hand in hands for i in hand]
        missing, repeats = size - len(set(together)), len(together) - len(set(together))
        if n > 1 and hands[0] == hands[1]:
            why = f"in epoch {epoch} ranks 0 and 1 take the same samples: give the loader the sampler."
            return Part("order", False, why)
        if missing or repeats > n - 1:
            why = f"in epoch {epoch} {missing} of {size} samples are left out and {repeats} are taken again"
            return Part("order", False, f"{why}: at most {n - 1} repeats and none left out are right.")
    if any(dealt[e] == dealt[e - 1] for e in range(1, epochs)):
        return Part("order", False, f"every epoch has the same order.{hints(text, 'order')}")
    return Part("order", True, f"{size} samples dealt to {n}, another order in each of {epochs} epochs")
