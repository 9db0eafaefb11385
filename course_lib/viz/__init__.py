"""Figures of the course; the only place that imports matplotlib. Each function returns a Figure."""
