"""Ranks, what they say to each other, and what that costs."""
