"""The kernel of a feedback page: IPython's, with torch and the server of ranks there before its threads."""

from __future__ import annotations

from course_lib.grading.own_server import fork_server

if __name__ == "__main__":
    fork_server()
    from ipykernel.kernelapp import launch_new_instance

    launch_new_instance()
