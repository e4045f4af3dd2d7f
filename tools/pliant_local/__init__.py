"""`pliant local`: a sandbox of several agents on one machine.

This package starts agents as processes with their own homes, gives them a network of namespaces, adds and removes them
by a schedule or by command, and has a trainer without a framework. `schedule` decides which agents to add and remove,
with pure functions. Only `command` prints and starts processes. Importing the package alone loads nothing.
"""
