"""The client of a coordinator, for the command line, agents, workers and other programs.

A `Client` retries. A request may be sent twice, because every command names its subject: the second one finds its work
done, or its generation over. So the client retries after a lost connection, while a coordinator starts, and after an
answer of 503. It uses another endpoint if there is one, pauses longer each time, and raises `Unreachable` after
`patience_s`. A refusal is an answer and is raised at once as `Refused`, `NotAllowed` or `BadInput`.

The client checks the other side before it sends its token. It rejects an answer without the header of the protocol, and
a connection to itself, which loopback can make when no process listens on an ephemeral port. This prevents accidents.
Only TLS protects against deliberate deception.
"""

from pliant.client.client import Client

__all__ = ["Client"]
