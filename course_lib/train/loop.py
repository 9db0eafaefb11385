"""The training loop that labs measure: `train(TrainOptions(...))`, on one process or on ranks.

A step is forward and backward of every micro-batch, gradients joined and clipped, the optimizer. Production
loops add saving and resuming (lab 13), evaluation, and loaders that read ahead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from course_lib.model.batches import Batch
from course_lib.model.corpus import corpus_batch, load_corpus, synthetic_corpus
from course_lib.model.transformer import cross_entropy
from course_lib.ranks import run_ranks
from course_lib.train.fit import check_fits
from course_lib.train.meter import Meter, TrainResult, learning_rate_at
from course_lib.train.options import TrainOptions, is_mixed, meant
from course_lib.train.peak import Peak, find_peak
from course_lib.train.progress import bar_of_steps, write_line
from course_lib.train.strategies import Strategy, build, composed

Clock = Callable[[], float]
StepFn = Callable[[Batch, int], dict[str, float]]
"""(batch, number of the step) -> loss, learning_rate, grad_norm."""
SYNTHETIC_TOKENS = 100_000


def train(options: TrainOptions, *, progress: bool = True, clock: Clock = time.perf_counter) -> TrainResult:
    """Run the steps; return metrics of each, as one process sees them or rank 0.

    Metrics: step, loss (mean over ranks, before the update), learning_rate, grad_norm, step_time_s,
    tokens_per_s, mfu, hfu. With `options.out` they are lines of metrics.jsonl there, written as they come.
    progress: show a bar of steps on stderr while they run.
    clock: what step times, and a measured peak, are read from.
    Raises: ValueError for a model that does not fit, an empty corpus or none, an unknown peak, a folder
        that cannot be made.
    """
    device = _device(options)
    _set_threads(options)
    check_fits(options, device)
    corpus = _corpus(options)
    _make_folder(options.out)
    peak = find_peak(options.peak, device, "bf16" if is_mixed(options, device) else "fp32", clock)
    with bar_of_steps(options.steps) if progress else nullcontext() as told:
        arguments = (options, peak, corpus, told, clock)
        if options.ranks == 1:
            return TrainResult(train_rank(*arguments), peak)
        timeout_s = 60.0 + 60.0 * options.steps
        ranks = run_ranks(train_rank, options.ranks, *arguments, device=device.type, timeout_s=timeout_s)
        return TrainResult(ranks[0], peak)


def train_rank(
    options: TrainOptions, peak: Peak, corpus: Tensor, told: Path | None, clock: Clock = time.perf_counter
) -> list[dict[str, Any]]:
    """Train as this rank, or as the only process; return the metrics of every step.

    told: a file to which rank 0 adds each step's metrics as it ends; `options.out` has another.
    """
    rank = dist.get_rank() if options.ranks > 1 else 0
    device = _device(options)
    mixed = is_mixed(options, device)
    step_of = _composed(options) if options.is_composed else _strategy(options, device, mixed)
    meter = Meter(
        config=options.config,
        seq_len=options.seq_len,
        tokens_per_step=options.batch_size * options.seq_len,
        num_devices=options.ranks,
        peak=peak,
        recompute=options.recompute,  # type: ignore[arg-type]  # checked by TrainOptions
    )
    metrics = []
    files = [*([told] if told else []), *([Path(options.out) / "metrics.jsonl"] if options.out else [])]
    for step in range(options.steps):
        begin_s = clock()
        batch = corpus_batch(
            corpus,
            options.batch_size,
            options.seq_len,
            step=step,
            seed=options.seed,
            rank=0 if options.is_composed else rank,
            world_size=1 if options.is_composed else options.ranks,
        )
        done = step_of(batch, step)
        found = {"step": step, **done, **_timed(meter, clock() - begin_s)}
        metrics.append(found)
        for file in files if rank == 0 else ():
            write_line(file, found, is_first=step == 0)
    return metrics


def _strategy(options: TrainOptions, device: torch.device, mixed: bool) -> StepFn:
    strategy = build(options, device, is_mixed=mixed)
    # Compiled, it reads the logits [B, S, V] once; eager, their float32 copies are the largest tensors.
    loss_of = torch.compile(mean_loss) if options.compile else mean_loss
    casting = torch.autocast(device.type, torch.bfloat16) if mixed else nullcontext()

    def run(batch: Batch, step: int) -> dict[str, float]:
        return train_step(strategy, options, batch, step, device, casting, loss_of)

    return run


def _composed(options: TrainOptions) -> StepFn:
    """The 4-D step: every rank gets the full batch and takes its part."""
    training = composed(options)

    def run(batch: Batch, step: int) -> dict[str, float]:
        rate = set_rate(training.optimizer, options, step)
        loss, norm = training.step(batch)
        return {"loss": loss, "learning_rate": rate, "grad_norm": norm}

    return run


def set_rate(optimizer: Optimizer, options: TrainOptions, step: int) -> float:
    """Give the optimizer this step's learning rate, and return it."""
    rate = learning_rate_at(
        step, peak=options.learning_rate, warmup_steps=options.warmup_steps, num_steps=options.steps
    )
    for group in optimizer.param_groups:
        group["lr"] = rate
    return rate


def train_step(
    strategy: Strategy,
    options: TrainOptions,
    batch: Batch,
    step: int,
    device: torch.device,
    casting: AbstractContextManager[Any],
    loss_of: Callable[[Tensor, Tensor], Tensor],
) -> dict[str, float]:
    """Do one optimizer step on this rank's shard of the batch; return loss, learning_rate and grad_norm."""
    rate = set_rate(strategy.optimizer, options, step)
    total = torch.zeros((), device=device)
    for is_last, part in _microbatches(batch, options):
        with nullcontext() if is_last else strategy.unsent():
            with casting:
                logits = strategy.model(part.tokens.to(device))
            loss = loss_of(logits, part.targets.to(device)) / options.num_microbatches
            loss.backward()
        total += loss.detach()
    strategy.finish_gradients()
    norm = strategy.clip_(options.clip or float("inf"))
    strategy.optimizer.step()
    strategy.optimizer.zero_grad()
    if options.ranks > 1:
        dist.all_reduce(total, op=dist.ReduceOp.SUM)
    return {"loss": total.item() / options.ranks, "learning_rate": rate, "grad_norm": float(norm)}


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Average the cross entropy over tokens, in float32: logits [B, S, V], targets [B, S] -> scalar."""
    return cross_entropy(logits.float(), targets)


def _microbatches(batch: Batch, options: TrainOptions) -> Iterator[tuple[bool, Batch]]:
    size, count = options.local_microbatch_size, options.num_microbatches
    for place in range(count):
        yield place == count - 1, batch[slice(place * size, (place + 1) * size)]


def _timed(meter: Meter, step_time_s: float) -> dict[str, float]:
    return {"step_time_s": step_time_s, **meter.measure(step_time_s)}


def _device(options: TrainOptions) -> torch.device:
    enough = torch.cuda.device_count() >= options.ranks
    if options.device == "cuda" and not enough:
        raise ValueError(
            f"every rank must have a GPU; got {torch.cuda.device_count()} for ranks={options.ranks}. "
            "Take --device cpu or fewer ranks."
        )
    on_gpu = enough and options.device != "cpu" and not options.is_composed
    return torch.device("cuda" if on_gpu else "cpu")


def _set_threads(options: TrainOptions) -> None:
    threads = options.threads or (1 if options.ranks > 1 else 0)  # a rank has one: the peak is measured alike
    if threads:
        torch.set_num_threads(threads)


def _corpus(options: TrainOptions) -> Tensor:
    if options.data == "synthetic":
        return synthetic_corpus(SYNTHETIC_TOKENS, options.seed)
    try:
        corpus = load_corpus(None if options.data == "corpus" else options.data)
    except OSError as error:
        raise ValueError(
            f"data must be corpus, synthetic, or the path of a text; got {options.data!r}: {error.strerror}."
            f"{meant(options.data, ('corpus', 'synthetic'))}"
        ) from None
    corpus_batch(corpus, options.batch_size, options.seq_len)  # long enough?
    return corpus


def _make_folder(out: str) -> None:
    if out:
        try:
            Path(out).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"out must be a folder that can be made; got {out!r}: {error.strerror}. Name another."
            ) from None
