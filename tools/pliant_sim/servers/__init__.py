"""Simulated parameter servers: real layouts and copies, with workers that push to them."""
