"""The simulator: the real decisions in a seeded universe.

What may live here: a clock, a network, disks and processes that exist only as events in a queue, faults drawn from a
seed, and checkers that look after every event. The brains (`pliant.core`), the pump
(`pliant.coordinator.service.service`) and the store's contract are the real ones; only the shells around them are
made up.
"""
