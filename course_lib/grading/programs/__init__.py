"""One file an exercise: how the answer is run in a rank. No oracle, no seed, nothing of `verdicts/`."""
