"""Simulated launched jobs: their world, faults and checks."""
