"""Reference library of the course: from one process to a 4-D training step."""

__version__ = "0.1.0"

# Where the course is published: the only place that says so. Notebooks take their Colab links and the
# installation of a notebook alone from here; after a change, `course build`.
REPOSITORY = "https://github.com/your_organisation/training-at-scale"

# Until then badges and links say that they lead nowhere.
IS_PUBLISHED = "/your_organisation/" not in REPOSITORY
