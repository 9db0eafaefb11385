"""Reference library of the course: from one process to a 4-D training step."""

__version__ = "0.1.0"
