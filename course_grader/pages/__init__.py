"""Feedback pages."""
