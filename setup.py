"""What pyproject.toml cannot say: the packages are found, and two lie in folders of their own."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["course_lib*", "course_grader*"]),
        "course_lib.data",
        "course_lib.notebooks",
    ],
    package_dir={"course_lib.data": "data", "course_lib.notebooks": "notebooks"},
)
