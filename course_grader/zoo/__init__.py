"""Known right and wrong answers of `tests/zoo`, read."""
