"""The coordinator: the shell around the job's brain.

What may live here: the inbox and the pump, and later what brings commands to them and answers from them. No decision:
those are in `pliant.core`.
"""
