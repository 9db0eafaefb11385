"""The list of attacks beside a small class; `make attack` runs it beside nineteen honest students."""

from __future__ import annotations

from known import ATTACKS
from run import main

# Nobody waits for these in a test: they end by a limit of time, as "endless loop" does.
LONG = ("sleep", "deadlock", "fork bomb", "memory bomb", "10 GB file")


def test_every_attacker_gets_what_it_deserves_and_the_others_theirs() -> None:
    chosen = [attack.name for attack in ATTACKS if attack.name not in LONG]
    assert set(LONG) <= {attack.name for attack in ATTACKS}
    assert main(chosen, honest=3) == 0
