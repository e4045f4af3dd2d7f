"""The agent: one per machine, it supervises workers.

What may live here: whatever runs workers, watches them end and keeps their output; a job's own folder; and the
coordinator that `pliant run` keeps as its child. What to do with workers is decided in `pliant.core.supervisor`.
Nothing here prints: `pliant.cli.run.command` shows what it is told. Importing this package alone loads nothing.
"""
