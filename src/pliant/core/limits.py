"""What makes no sense to ask for, whatever state a job is in: numbers and names outside of all reason.

Each `bad_...` gives the refusal, or None.
"""

from __future__ import annotations

from pliant.core.messages import Code, Create, Rejection
from pliant.core.model import Job, Target
from pliant.core.names import bad_name

GRACE_MAX_S = 30 * 86400.0
WAIT_MAX_S = 365 * 86400.0
WEIGHT_MAX = 1_000_000
CHECKPOINT_NAME_MAX = 255
SIZE_MAX = 100_000  # far beyond what one coordinator is for; keeps a slip of the finger from being a job


def bad_creation(command: Create) -> Rejection | None:
    low, high = command.size_min, command.size_max
    if wrong := bad_name(command.name):
        return Rejection(Code.BAD, wrong)
    if not 1 <= low <= high <= SIZE_MAX:
        return Rejection(Code.BAD, f"sizes must satisfy 1 <= min <= max <= {SIZE_MAX}; got min {low}, max {high}")
    if command.wait_limit_s is not None and not 0 < command.wait_limit_s <= WAIT_MAX_S:
        return Rejection(Code.BAD, f"a wait limit lasts up to {WAIT_MAX_S:g} s; got {command.wait_limit_s}")
    if command.max_restarts < 0:
        return Rejection(Code.BAD, f"max_restarts cannot be negative; got {command.max_restarts}")
    return bad_target(low, high, command.target)


def bad_target(low: int, high: int, target: Target) -> Rejection | None:
    if not low <= target.size <= high:
        return Rejection(Code.BAD, f"the target must lie between min {low} and max {high}; got {target.size}")
    if target.placement and sum(count for _, count in target.placement) != target.size:
        return Rejection(Code.BAD, f"the placement's counts must add up to the target {target.size}")
    if any(count < 0 for _, count in target.placement):
        return Rejection(Code.BAD, "a placement's counts cannot be negative")
    if len(dict(target.placement)) != len(target.placement):
        return Rejection(Code.BAD, "a placement names each agent once")
    return None


def bad_grace(grace_s: float) -> Rejection | None:
    if 0 <= grace_s <= GRACE_MAX_S:  # no number at all is not between them either
        return None
    return Rejection(Code.BAD, f"a grace period lasts from 0 to {GRACE_MAX_S:g} s; got {grace_s}")


def room(job: Job) -> int:
    """How many members, and how many agents, a job keeps account of: old and new side by side, and spares."""
    return 64 + 4 * job.size_max
