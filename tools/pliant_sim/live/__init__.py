"""Simulated live jobs: their world, faults and checks."""
