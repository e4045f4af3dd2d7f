"""Kinds of faults that only the simulator can inject; the others are in `pliant.chaos.fault_kinds`."""

from __future__ import annotations

from enum import StrEnum

from pliant.chaos.fault_kinds import FaultKind


class SimulatedFaultKind(StrEnum):
    """Faults that need access to a simulated process, clock or state."""

    REPLACE_ALL = "replace-all"  # drain every worker at once
    CLOCK_SKEW = "clock-skew"  # a machine's clock runs too fast or too slow
    CORRUPT_STATE = "corrupt-state"  # flip a bit of a member's weights
    WRONG_GRADIENT = "wrong-gradient"  # a worker computes one wrong gradient
    WRONG_GRADIENTS = "wrong-gradients"  # a worker computes wrong gradients from then on
    FOREIGN_JOIN = "foreign-join"  # a member with another fingerprint joins
    STOP_AGENT = "stop-agent"
    GO_LIVE = "go-live"  # a launched worker calls `pliant.join()`
    NEXT_ATTEMPT = "next-attempt"  # a user cancels the job and creates it again
    INTERRUPT = "interrupt"  # Ctrl-C of `pliant run` on every machine, often just after a worker was killed
    FREEZE = "freeze"  # a worker stops for ever (SIGSTOP), and nothing of it answers
    HANG = "hang"  # a worker never returns from user code; it still renews its lease
    AGENT_LEAVES = "agent-leaves"  # a user asks an agent to leave, as `pliant drain --agent --leave` does
    FREEZE_LEADER = "freeze-leader"  # the leading coordinator stops; no connection to it is reset
    LOSE_LEADER = "lose-leader"  # its machine is gone, and no connection to it is reset
    CUT_STORE = "cut-store"  # one coordinator cannot reach the store for longer than a lease
    SLOW_STORE = "slow-store"  # a coordinator's writes take seconds
    NAME_TAKEN = "name-taken"  # another machine's agent uses the name of one that is away


AnyFaultKind = FaultKind | SimulatedFaultKind
