"""Known right and wrong answers, and whether the grader tells them apart."""
