"""The simulator: the real decision code against seeded faults, in virtual time.

This package holds a clock, a network, disks and processes that exist only as events in a queue, faults drawn from a
seed, and checks that run after every event. `pliant.core`, the coordinator's service (`pliant.coordinator.service`) and
the store's contract are the real ones.
"""
