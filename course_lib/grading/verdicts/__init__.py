"""One file an exercise: declaration, cases, inputs, oracle, verdict. Never enters a rank."""
