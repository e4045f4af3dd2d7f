"""The coordinator: the process that decides for a job, around the decisions in `pliant.core`.

`service` has the inbox, the pump and the leases. `async_service` and `notifications` run it on an event loop. `api` is
the HTTP interface with its credentials, and `server` the program. No decision belongs here: those are in `pliant.core`.
"""
