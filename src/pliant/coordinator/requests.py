"""What is asked of a coordinator, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.messages import Command, Rejection
from pliant.core.model import AgentId, MemberId, View


@dataclass(frozen=True, slots=True)
class Renew:
    """A member is alive. It knows the job up to `revision`, and is told only what is newer."""

    member: MemberId
    revision: int = -1


@dataclass(frozen=True, slots=True)
class RenewAgent:
    """An agent is alive."""

    agent: AgentId


@dataclass(frozen=True, slots=True)
class WatchClosed:
    """A member's watch ended without goodbye: a suspicion, no more."""

    member: MemberId


Request = Command | Renew | RenewAgent | WatchClosed


@dataclass(frozen=True, slots=True)
class Accepted:
    """Done and durable, or nothing to do. `view` is what the member that asked should know now."""

    revision: int
    view: View | None


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Nothing was decided. Ask again, or ask somebody else."""

    why: str


Answer = Accepted | Rejection | Unavailable


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one request. `ticket` is whatever came with it.

    `revision` is what the answer rests on: who knows a newer one must not take a refusal at its word.
    """

    ticket: object
    job: str
    request: Request
    answer: Answer
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Pumped:
    """What a pump did: the replies, and for whoever watches, the jobs that changed; `moved` had more than progress.

    `bugs` names what was decided and not written, because it would have broken an invariant: to be said loudly.
    """

    replies: tuple[Reply, ...]
    changed: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    bugs: tuple[str, ...] = ()
