"""The member's state machine: the next actions of one worker in the live protocol.

A worker runs it beside its training loop, as one pure function: `react(machine, signal) -> (machine, actions)`. A shell
(the training library, or the simulator) performs the actions and feeds the results back as signals. The modules follow
the phases of a member: `step`, `recover`, `join`, `leave`, `checkpoint`. `common` holds the operations that they share,
`signals` all signals and actions, `state` the machine.
"""

from pliant.core.member.machine import react
from pliant.core.member.state import Machine, Phase

__all__ = ["Machine", "Phase", "react"]
