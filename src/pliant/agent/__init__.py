"""The agent: one per machine, it supervises workers.

It starts workers, watches them, keeps their output and a job's folder, and runs the coordinator of `pliant run` as a
child process. `pliant.core.supervisor` decides. Nothing here prints: `pliant.cli.run` shows the output. Importing this
package alone loads nothing.
"""
