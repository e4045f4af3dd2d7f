"""Faults on purpose: what `pliant chaos` does to a job that allowed it, and how it sees what the job made of it.

`plan` (which faults, when, at whom), `outcomes` and `report` are pure. `processes`, `sockets` and `cuts` reach into
processes of the job on this machine and into nothing else; `strikes` carries a fault out, and `mender` undoes it
however this process ends. `storm` has the loop.
"""
