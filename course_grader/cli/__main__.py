"""`python -m course_grader.cli`."""

from course_grader.cli import main

main()
