"""Pipeline schedules as plain data: the same list is drawn, validated, timed and run on ranks."""
