"""What instructors and authors run: building notebooks, the zoo of answers, grading, the demonstration."""
