"""How everything else talks to a coordinator: the command line, agents, workers, and programs of yours.

A `Client` keeps asking. What it sends may be sent twice: every command of ours says who or what it is about, so the
second time it finds its work done, or that the generation it was about is over. So a lost connection, a coordinator
that is starting, or one that says "not now" is tried again, at another endpoint if there is one, with growing pauses,
until `patience_s` is over; then `Unreachable`.
A refusal is an answer and is raised at once: `Refused`, `NotAllowed` or `BadInput`.

It makes sure whom it is talking to before it shows its token or believes anything: an answer without our protocol's
header is somebody else's, and a connection to oneself (which loopback can make, when nobody listens on an ephemeral
port) is nobody's. That is against accidents; against somebody who means to deceive there is TLS.
"""

from pliant.client.client import Client

__all__ = ["Client"]
