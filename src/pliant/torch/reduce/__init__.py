"""Gradient reduction: floating-point, or deterministic over a tree of slots."""
