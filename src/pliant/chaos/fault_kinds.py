"""Kinds of faults that `pliant chaos`, the simulator and the test benches share."""

from __future__ import annotations

from enum import StrEnum


class FaultKind(StrEnum):
    """A kind of fault that means the same wherever it is injected.

    A kind that only one bench can inject is defined by that bench.
    """

    # Processes
    KILL = "kill"  # kill a worker (SIGKILL); some benches kill two at once
    KILL_ALL = "all"  # kill every worker at once
    KILL_AGENT = "kill-agent"  # kill an agent (`pliant run`), and its workers with it
    KILL_COORDINATOR = "coordinator"  # kill the coordinator
    STOP = "stop"  # stop a worker (SIGSTOP) for a while, sometimes for longer than its lease
    STOP_COORDINATOR = "stop-coordinator"
    SLOW = "slow"  # give a worker a third of its time
    USER_ERROR = "user-error"  # user code raises, or ends with an error

    # Planned changes
    DRAIN = "drain"  # a member leaves at the next boundary
    DRAIN_AGENT = "drain-agent"
    SPOT_NOTICE = "spot-notice"  # a machine will be taken away
    RESIZE = "resize"
    JOIN = "join"  # more workers join

    # Network
    PARTITION = "partition"  # cut a machine, a member or the coordinator off
    PARTITION_ONE_WAY = "partition-one-way"  # cut a machine off from the coordinator in one direction
    PARTITION_MEMBERS = "partition-members"  # cut two members off from each other
    PARTITION_COORDINATORS = "partition-coordinators"  # cut all coordinators off, for longer than a lease
    LOSE_MESSAGES = "lose-messages"
    DUPLICATE_MESSAGES = "duplicate-messages"
    DELAY_MESSAGES = "delay-messages"
    REORDER_MESSAGES = "reorder-messages"
    CLOSE_WATCH = "close-watch"  # close a member's or an agent's connection to the coordinator
    BREAK_TRANSFER = "break-transfer"  # break the transfer of a state to a joiner

    # Storage
    CRASH_BEFORE_WRITE = "crash-before-write"  # the coordinator ends just before a write to its store
    CRASH_AFTER_WRITE = "crash-after-write"
    STORE_ERROR = "store-error"
    STORE_TIMEOUT_APPLIED = "store-timeout-applied"  # the store reports a timeout; the write took effect
    STORE_TIMEOUT_LOST = "store-timeout-lost"  # the write had no effect
    STORE_TIMEOUT_LATE = "store-timeout-late"  # the write takes effect later
    REQUEST_CHECKPOINT = "checkpoint"  # a user requests a checkpoint
    DAMAGE_CHECKPOINT = "damage"  # flip a bit of the newest checkpoint, then kill every worker

    # Clocks
    CLOCK_JUMP = "clock-jump"  # a coordinator's wall clock jumps
    TWO_LEADERS = "two-leaders"  # one coordinator's clock runs ahead, so two of them lead for a moment
