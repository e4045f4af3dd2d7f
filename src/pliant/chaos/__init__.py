"""Fault injection: `pliant chaos` injects faults into a job that allows them and reports the outcomes.

`plan` (which faults, when, which victims), `outcomes` and `report` are pure. `processes`, `sockets` and `socket_filter`
act only on the job's processes on this machine. `inject` carries out a fault. `undo` reverts it however this process
ends. `runner` has the main loop.
"""
