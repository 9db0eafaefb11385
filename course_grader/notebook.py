"""What the first cell of every notebook asks for: is what is installed what this notebook was made for?

One line says whether the machine is ready. Imports nothing that could be missing, least of all torch. From
then on a cell that needs an unwritten exercise says so, and a fork server loads torch beside what the
notebook does next.
"""

from __future__ import annotations

import importlib.metadata
import re

from course_lib import IS_PUBLISHED, REPOSITORY, __version__, doctor

DISTRIBUTION = "training-at-scale-course"


def start(version: str) -> None:
    """Compare versions of notebook and package, look for what is needed, and explain errors from now on.

    Raises: RuntimeError for a torch that is missing or too old, or another package that is missing.
    """
    torch = installed("torch")
    if torch is None or not doctor.is_enough(torch):
        least = ".".join(map(str, doctor.TORCH_AT_LEAST))
        raise RuntimeError(
            f"torch {least} or newer must be installed; got {torch or 'none'}. "
            "Run `%pip install -U torch` in a cell, then restart the kernel."
        )
    missing = missing_packages()
    if missing:
        raise RuntimeError(
            f"what the course needs must be installed; missing: {', '.join(missing)}. "
            f"Run `%pip install {' '.join(missing)}` in a cell, then restart the kernel."
        )
    if version != __version__:
        where = f"git+{REPOSITORY}@v{version}" if IS_PUBLISHED else "FOLDER"
        folder = "" if IS_PUBLISHED else ", FOLDER being its checkout,"
        print(
            f"This notebook is of version {version} of the course, the installed course_lib of "
            f"{__version__}: texts and checks may not agree. Either\n"
            f"- install the notebook's version: `%pip install --no-deps {where}`{folder} and "
            f"restart the kernel;\n- or take the notebook of {__version__}: `course update` carries your "
            "answers over."
        )
    print(doctor.readiness())
    _explain_errors()
    from course_lib.ranks.forkserver import warm_up

    warm_up()


def _explain_errors() -> None:
    from course_grader.answer import kernel
    from course_grader.show import stub_errors

    shell = kernel.shell()
    if shell is not None:
        stub_errors.explain_in(shell)


def installed(name: str) -> str | None:
    """Return the version of a package, None if it is not there."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def missing_packages() -> list[str]:
    """Return the packages of the core that are not installed: `--no-deps` left them to whoever runs this."""
    try:
        wanted = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:  # a folder on sys.path: nobody declared anything
        return []
    names = [re.split(r"[^A-Za-z0-9._-]", line)[0] for line in wanted if "extra ==" not in line]
    return [name for name in names if installed(name) is None]
