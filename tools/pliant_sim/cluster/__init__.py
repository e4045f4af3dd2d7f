"""Simulated clusters: many jobs on one pool, with the real `allocate`."""
