"""The coordinator: the shell around the job's brain.

What may live here: the inbox and the pump (`service`), the event loop around them (`desk`, `feed`), what brings
commands over HTTP and answers back (`gate`, `http`, `handlers`, `connections`, `server`), and who may come in (`auth`).
No decision: those are in `pliant.core`.
"""
