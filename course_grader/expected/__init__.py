"""The judge's side of each scenario: cases, inputs, what one process computes. Never enters a rank."""
