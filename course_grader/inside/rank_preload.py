"""Imported by the fork server: what a check does inside a rank is in most ranks.

It looks at what is loaded here, once. A rank that looked would copy every page it counts a reference on: a
third of the time of a small rank.
"""

from course_grader.inside import rank_worker
from course_grader.inside.import_guard import look_around

look_around()
assert rank_worker
