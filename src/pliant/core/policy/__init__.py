"""Policies: what a job changes in itself while it trains, as pure functions of its history and of reduced values."""
