"""Rounds of a machine with one port: how late each message of a traced world can be at the earliest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from course_grader.labs.lab02_collectives._collective import members
from course_grader.parts.common import plural
from course_grader.types import Case, Observation, Why
from course_lib.trace import Launch, RankTrace, Wait


def rounds_needed(case: Case) -> int:
    """ceil(log2 n) of the root's group."""
    return (len(members(case, case.params["root"])) - 1).bit_length()


def problem_of_rounds(seen: Observation, what: str = "the tensor must reach all {n} ranks") -> Why | None:
    """Say how many rounds it took, and along which chain; None if no more than needed."""
    n, allowed = len(members(seen.case, seen.case.params["root"])), rounds_needed(seen.case)
    messages = rounds(seen.traces)
    last = max(messages, key=lambda m: m.round_, default=None)
    if last is None or last.round_ <= allowed:
        return None
    chain = ", then ".join(f"{m.src} to {m.dst}" for m in last.chain())
    return Why(
        f"{what.format(n=n)} in ceil(log2 {n}) = {plural(allowed, 'round')}",
        f"it took {last.round_}: {chain}",
        _shape(messages, last),
    )


def _shape(messages: list[Message], last: Message) -> str:
    """Name messages in pieces, a star and a chain."""
    chain = last.chain()
    if len({(m.src, m.dst) for m in messages}) < len(messages):
        return "A rank got several messages, and each takes a round: send the tensor in one."
    if all(m.src == last.src for m in messages):
        return "The root sends everything itself: let those who have the tensor help."
    if len(chain) == len(messages) == len({m.src for m in chain}):
        return "A chain: only one rank sends at a time."
    if len({m.src for m in messages}) == len(messages):  # each sends once: a reduction
        return "Pairs must add at the same time, in every round."
    return "Everyone who has the tensor must send in every round."


@dataclass
class Message:
    """One message, and the round in which it travels."""

    src: int
    dst: int
    round_: int
    after: Message | None = None  # the message that had to come before

    def chain(self) -> list[Message]:
        """This message and those it had to wait for, the first one first."""
        return [*(self.after.chain() if self.after else []), self]


@dataclass
class _Cursor:
    """How far a rank has been read."""

    events: list[Launch | Wait]
    at: int = 0
    last_sent: Message | None = None
    last_received: Message | None = None
    receives: dict[int, tuple[Any, ...]] = field(default_factory=dict)  # launch id -> key


def rounds(traces: Sequence[RankTrace]) -> list[Message]:
    """Return all messages with the earliest round of each, if a rank sends one message per round.

    A message can leave one round after the previous one of its sender, and one round after everything the
    sender had waited for when it was launched. No measured time is used.
    """
    cursors = [_Cursor([e for e in t.events if isinstance(e, Launch | Wait)]) for t in traces]
    found: dict[tuple[Any, ...], Message] = {}
    moved = True
    while moved:
        moved = False
        for rank, cursor in enumerate(cursors):
            while cursor.at < len(cursor.events) and _read(rank, cursor, found):
                cursor.at += 1
                moved = True
    return list(found.values())


def _read(rank: int, cursor: _Cursor, found: dict[tuple[Any, ...], Message]) -> bool:
    """Take one event; False if it waits for a message whose round is not known yet."""
    event = cursor.events[cursor.at]
    if isinstance(event, Wait):
        key = cursor.receives.get(event.launch_id)
        message = _match(key, found) if key else None
        if key and message is None:
            return False
        if message and (cursor.last_received is None or message.round_ > cursor.last_received.round_):
            cursor.last_received = message
    elif event.op == "recv":
        cursor.receives[event.id] = (event.group, event.src, rank, event.tag, event.ordinal)
    elif event.op == "send":
        before = [m for m in (cursor.last_received, cursor.last_sent) if m is not None]
        after = max(before, key=lambda m: m.round_, default=None)
        message = Message(rank, event.dst or 0, (after.round_ if after else 0) + 1, after)
        found[event.group, rank, event.dst, event.tag, event.ordinal] = message
        cursor.last_sent = message
    return True


def _match(key: tuple[Any, ...], found: dict[tuple[Any, ...], Message]) -> Message | None:
    """The message a receive got; one from any source takes the latest that was sent to it."""
    if key[1] is not None:
        return found.get(key)
    group, _, dst, tag, _ = key
    return next((m for k, m in found.items() if (k[0], k[2], k[3]) == (group, dst, tag)), None)
