"""Authenticated connections between the members of a generation."""
