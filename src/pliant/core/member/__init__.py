"""The member's brain: what one worker does next in the live protocol.

What may live here: the machine a worker runs beside its training loop, as one pure function,
`react(machine, signal) -> (machine, actions)`. A shell (the training library, or the simulator) carries the actions
out and feeds back what came of them. Files by what a member is doing: `stepping`, `recovering`, `joining`, `leaving`;
`moves` holds what they share, `signals` everything that goes in and out.
"""

from pliant.core.member.machine import react
from pliant.core.member.state import Machine, Phase

__all__ = ["Machine", "Phase", "react"]
