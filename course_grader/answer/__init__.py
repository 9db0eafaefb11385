"""A student's definitions, taken out of a notebook's cells or out of a kernel."""
