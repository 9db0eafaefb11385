"""`BucketedDDP`: gradients in buckets by a stated rule, sent while backward still computes.

Longer than 120 lines: the packing rule stands here again, and an order that only buckets have.
"""

from collections.abc import Sequence
from typing import Any

from course_lib.grading.core.types import Case, Exercise, Seen
from course_lib.grading.parts.bytes import BytesAtMost
from course_lib.grading.parts.common import Window, calls_in
from course_lib.grading.parts.counts import Calls
from course_lib.grading.parts.order import Holds, NotPolled, each_rank
from course_lib.grading.parts.overlap import Hides
from course_lib.grading.toy_models import NUM_STEPS, ToyNet, nbytes
from course_lib.grading.worlds import wrapped_training
from course_lib.grading.worlds.wrapped_training import AWKWARD, CONSTRUCTION, STEPS, case, model_bytes

EXERCISE = Exercise(
    order=3,
    symbol="BucketedDDP",
    title="Buckets that travel while backward computes",
    minutes=30,
    difficulty=4,
    importance=5,
    lines=40,
    points={"values": 2.0, "bytes": 2.0, "order": 2.0, "clock": 2.0},
    task="Write a wrapper as before that packs gradients into buckets by the rule above, launches a bucket "
    "from the hook of the last gradient it was missing, and waits in `sync_gradients()`.",
    graded={
        "values": "As for NaiveDDP; a rank that did not use a parameter counts as zero.",
        "bytes": "The constructor sends the model once; a step sends each bucket of the rule once.",
        "order": "When the last gradient is ready, every bucket before its own is on its way, and none was "
        "waited for.",
        "clock": "Replayed on simulated clusters, a step hides at least half of what backward can hide.",
    },
    details="1 to 4 ranks (hidden: 3, 5, 6), tied and frozen parameters, parameters that some ranks or no "
    "rank "
    "uses, gradients that are set to None or to zero between steps, float64 (hidden: also float32). Every "
    "call was waited for when `sync_gradients` returns. Bytes: the constructor hands at most the model once "
    "to collectives; a step launches exactly one all_reduce a bucket, of its bytes, and nothing else. Order, "
    "where all parameters are used: the last gradient is the first layer's; before it nothing was waited "
    "for or polled. Clock: 4 ranks, a bucket a layer, on one cluster where communication takes half as long "
    "as "
    "backward, and on one where it takes twice as long. One rank alone may skip all of it.",
    signature="(module, bucket_bytes)",
    forbids=("ddp",),
    scenario=wrapped_training.wrapped_training(arguments=["bucket_bytes"], mark_last_gradient=True),
    hints=(
        "Three jobs: pack once in the constructor; in a hook, count the gradients a bucket still misses and "
        "launch it when none is missing; in `sync_gradients`, launch what is left, wait for all, and put "
        "the means into `.grad`.",
        "Packing: walk the trainable parameters backwards with a running size; when the next one does not "
        "fit, begin a new bucket and a new size. `param.register_post_accumulate_grad_hook(f)` calls "
        "f(param) when param.grad is final. dist.all_reduce(flat, async_op=True) returns a Work; keep it and "
        "the flat tensor until you call wait().",
        "Ranks pair their collectives by order of launch, and a rank that does not use a parameter never "
        "gets its hook. So launch bucket i only after bucket i - 1, on every rank, and let sync_gradients "
        "fill the gaps with zeros. Reset all counters there: the second step must start like the first.",
    ),
)

CLOCKED = "a bucket a layer"


def packed(
    n: int, size: int, words: str, without: Sequence[int] = (), keeps: bool = False, **model: Any
) -> Case:
    """A case with buckets of `size` bytes; the ranks `without` do not use the optional layer."""
    params = {"bucket_bytes": size, "without_optional": list(without), "keeps_gradients": keeps}
    return case(n, f"bucket_bytes={size:,}, {words}", params=params, **model)


OPEN = [
    packed(1, 448, "plain"),
    packed(2, 700, "tied and frozen", tied=True, frozen=True),
    packed(3, 450, "an uneven last bucket", width=9),
    packed(2, 10**6, "one bucket for all", depth=2),
    packed(4, 420, "used by some ranks, or by none", [1], **AWKWARD),
    packed(4, 20_000, CLOCKED, width=48, depth=8),
]
HIDDEN = [
    packed(5, 600, "tied, used by some ranks, or by none", [0, 3], **AWKWARD),
    packed(6, 1, "every parameter alone, zero_grad(set_to_none=False)", keeps=True, depth=2),
    packed(3, 450, "float32", width=9, dtype="float32"),
    packed(3, 600_000, "a model of 1.5 MB", width=250, optional=True),
]

expected = wrapped_training.trained
LOCAL_ONLY = wrapped_training.LOCAL_ONLY
MISTAKES = {**wrapped_training.MISTAKES, **wrapped_training.USED_BY_SOME}


def buckets(case: Case) -> list[list[str]]:
    """Names of parameters, packed in reverse; a bucket closes when the next one would make it too large."""
    packed: list[list[str]] = []
    used, sizes = 0, _sizes(case)
    for name in reversed(sizes):
        if not packed or used + sizes[name] > case.params["bucket_bytes"]:
            packed.append([])
            used = 0
        packed[-1].append(name)
        used += sizes[name]
    return packed


def _sizes(case: Case) -> dict[str, int]:
    named = ToyNet(**case.params["model"]).named_parameters()
    return {name: nbytes([p]) for name, p in named if p.requires_grad}


def _bucket_bytes(case: Case) -> list[int]:
    return [sum(_sizes(case)[name] for name in bucket) for bucket in buckets(case)]


def _before_last(case: Case) -> int:
    """How many buckets come before that of the first layer, whose gradient is ready last."""
    return next(i for i, bucket in enumerate(buckets(case)) if "embed.weight" in bucket)


def _has_order(case: Case) -> bool:
    return case.world_size > 1 and _before_last(case) > 0 and "unused" not in case.params["model"]


UNTIL_LAST = [Window(step.start, "last gradient", step.words) for step in STEPS]


def _late(seen: Seen, rank: int) -> str:
    """Enough bytes were launched or few enough calls are left: wrong packing costs bytes, and not this."""
    trace, early = seen.traces[rank], _before_last(seen.case)
    due = sum(_bucket_bytes(seen.case)[:early])
    for step, window in zip(STEPS, UNTIL_LAST, strict=True):
        every, calls = calls_in(trace, step), calls_in(trace, window)
        ids = {call.id for call in every}
        waited = {w.launch_id for w in trace.between(window.start, window.end).waits()} & ids
        if waited:
            return (
                f"no bucket may be waited for before the last gradient is ready; rank {rank} waited for "
                f"{len(waited)} in {step.words}. Launch with async_op=True in the hook, wait in "
                "sync_gradients."
            )
        left = len(every) - len(calls)
        enough = sum(call.bytes_ for call in calls) >= due or left <= len(buckets(seen.case)) - early
        if not calls or not enough:
            return (
                f"when the last gradient is ready, the {early} buckets before its own must have been "
                f"launched; rank {rank} had launched {len(calls)} in {step.words}. Communication overlaps "
                "with backward only if each bucket leaves from a hook, as soon as it is full."
            )
    return ""


POLL = "Polling keeps backward waiting: wait in sync_gradients."
PARTS = [
    BytesAtMost(
        windows=[CONSTRUCTION],
        count="handed in",
        at_most=model_bytes,
        must="the constructor may hand each parameter and buffer to a collective once,",
    ),
    Calls(
        windows=STEPS,
        each=True,
        exactly=lambda case, rank, step: {"all_reduce": _bucket_bytes(case)},
        must="the packing rule gives {count} all_reduces of {sizes} bytes",
    ),
    *(NotPolled(part=part, window=window, why=POLL) for part in ("order", "clock") for window in UNTIL_LAST),
    Holds(
        problem=each_rank(_late),
        passed="buckets were launched before the last gradient, and none was waited for",
        applies=lambda case: not case.label.endswith(CLOCKED) and _has_order(case),
    ),
    Hides(
        window=STEPS[NUM_STEPS - 1],  # the first may hold what happens only once
        why="Launch each bucket while backward still computes, and wait in sync_gradients only.",
        applies=lambda case: case.label.endswith(CLOCKED),
    ),
]
