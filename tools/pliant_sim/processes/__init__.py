"""The simulated coordinator, agents and workers."""
