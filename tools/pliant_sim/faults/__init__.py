"""The faults of schedules: which strike when, and their effect on a simulation."""
