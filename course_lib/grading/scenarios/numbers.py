"""Call an answer that takes no arguments and returns {name: number}."""

from course_lib.grading.numbers import program as program
