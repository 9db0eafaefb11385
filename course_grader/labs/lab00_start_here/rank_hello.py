"""`rank_hello`: every rank says who it is, and all agree on a sum."""

import numpy as np

from course_grader.labs.lab00_start_here._own_numbers import CALLS, WORDS, case, of_both_calls, own_numbers
from course_grader.parts.counts import Calls
from course_grader.parts.rules import Rule
from course_grader.types import Array, Case, Exercise, Expected, Observation, Why, rng

NAMES = ("rank", "world_size", "sum")


def _secret(case: Case, rank: int, call: int) -> int:
    """No float32 and no int32 holds it; a multiple of 60, so that a mean over 1 to 6 ranks is an int, too."""
    if case.world_size > 2 and rank == 1:
        return 0
    largest = 10**12 // 60
    return 60 * int(rng(case, rank, call).integers(-largest, largest))


def _inputs(case: Case, rank: int) -> dict[str, Array]:
    return {"secret": np.array([_secret(case, rank, call) for call in range(len(CALLS))])}


EXERCISE = Exercise(
    order=1,
    title="Every rank says hello",
    minutes=10,
    difficulty=1,
    importance=3,
    lines=4,
    points={"values": 0.5, "bytes": 1.5},
    task="Write a function that returns this rank's number, the number of ranks, and the sum of the secrets "
    "of all ranks, as three ints.",
    graded={
        "values": "Every rank returns all three.",
        "bytes": "A call launches one all_reduce and no other collective.",
    },
    details="1 to 4 ranks (hidden: 6); secrets are ints from -10^12 to 10^12, and 0 on one rank. Called "
    "twice, with other secrets. A call that was started with async_op=True must have been waited for when "
    "the function returns: sleeping is no waiting. Barriers are free, and one rank alone may skip the "
    "all_reduce.",
    signature="(secret)",
    scenario=own_numbers(inputs=_inputs, arguments=("secret",), returns=NAMES, whole=True),
    hints=(
        "Two functions of torch.distributed say who it is and how many there are: nobody communicates.",
        "The sum needs every secret. One collective leaves the sum of a tensor on every rank, in place.",
        "all_reduce wants a tensor, and secrets are whole numbers of up to 13 digits: which dtype holds "
        "them exactly, and how does one number get out of a tensor again?",
    ),
)

OPEN = [case(n) for n in (1, 2, 3, 4)]
HIDDEN = [case(6)]


def expected(case: Case, bits: str = "", local: bool = False) -> Expected:
    """bits: what a dtype keeps of secrets and sum."""
    n = case.world_size

    def one_call(call: int) -> Expected:
        secrets = [_secret(case, rank, call) for rank in range(n)]
        sums = secrets if local else [_kept(secrets, bits)] * n
        return {"rank": list(range(n)), "world_size": [n] * n, "sum": sums}

    return of_both_calls(one_call)


def _kept(secrets: list[int], bits: str) -> int:
    if bits == "float32":
        return int(np.array(secrets, np.float32).sum(dtype=np.float32))
    total = sum(secrets)
    return (total + 2**31) % 2**32 - 2**31 if bits == "int32" else total


LOCAL_ONLY = {"local": True}
MISTAKES = {
    "the sum is taken in float32, which keeps 7 digits: sum in an integer tensor": {"bits": "float32"},
    "the sum is taken in int32, which ends at 2^31: sum in torch.int64": {"bits": "int32"},
}


def _no_ints(seen: Observation) -> Why | None:
    for rank, data in enumerate(seen.got):
        for words in WORDS:
            types = [data.values["types" + words][name] for name in NAMES]
            if set(types) != {"int"}:
                return Why(
                    "the results must be three ints",
                    f"rank {rank} returned ({', '.join(types)})",
                    "Sum in an integer tensor.",
                )
    return None


PARTS = [
    Rule(part="values", problem=_no_ints, gate=True),
    Calls(
        windows=CALLS,
        exactly=lambda case, rank, call: {"all_reduce": [8]},
        only="calls",
        ignore=("barrier",),
        must="a call must launch one all_reduce and nothing else",
        why="One sum needs one all_reduce.",
    ),
]
