"""What is asked of a coordinator, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pliant.core import messages as m
from pliant.core.messages import Command, Event, Rejection
from pliant.core.model.job import FailingSlots
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.view import View
from pliant.wire.api import Renew, RenewAgent


@dataclass(frozen=True, slots=True)
class WatchClosed:
    """A member's watch ended without goodbye: a suspicion, no more."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class AgentWatchClosed:
    """The same of an agent's."""

    agent: AgentId


Request = Command | Renew | RenewAgent | WatchClosed | AgentWatchClosed


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

SLOTS_MAX = 1024  # one of which raised
SAMPLES_MAX = 4096  # of all of them together
TEXT_MAX = 2000  # characters of what somebody says in words; the rest is in their own log


def truncate_texts(request: Request) -> Request:
    """The same with long texts cut: they would be kept for ever and be told to everybody."""
    if isinstance(request, m.Raised):
        short = _short(request.poison)
        return request if short == request.poison else m.Raised(short)
    match request:
        case m.Drain() | m.DrainAgent() | m.Cancel() | m.Leave() | m.Stopped() if len(request.why) > TEXT_MAX:
            return replace(request, why=_cut(request.why))
        case m.Exited() if len(request.error) > TEXT_MAX:
            return replace(request, error=_cut(request.error))
        case _:
            return request


def _short(poison: FailingSlots) -> FailingSlots:
    """With the first slots, and the samples of the first of those."""
    slots = poison.slots[:SLOTS_MAX]
    samples, left = [], SAMPLES_MAX
    for of_slot in poison.samples[: len(slots)]:
        samples.append(of_slot[:left])
        left -= len(samples[-1])
    return replace(poison, slots=slots, samples=tuple(samples), error=_cut(poison.error))


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}... ({len(text)} characters)"


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

    `took_over`: this pump was the first of a new hold, so others may have written before it. `decided` has what was
    written to each job, in order. `bugs` names what was not written although it was decided, because it would have
    broken an invariant, and what cannot be read: to be said loudly.
    """

    replies: tuple[Reply, ...]
    changed: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    took_over: bool = False
    decided: tuple[tuple[str, tuple[Event, ...]], ...] = ()
    bugs: tuple[str, ...] = ()


def sender_of(request: Request) -> MemberId | None:
    """The member that asked, if it was one: it is told how things stand with the answer."""
    match request:
        case Renew(member) | m.Join(member=member) | m.Report(member=member) | m.Stopped(member=member):
            return member
        case m.WiringFailed(member=member) | m.Publish(member=member) | m.Drain(member=member):
            return member
        case m.PartNotWritten(member=member) | m.NotReadable(member=member):
            return member
        case _:
            return None


def is_sign_of_life(request: Request) -> bool:
    """Whether a member or an agent says that. What people say does not show that machines can be heard."""
    if isinstance(request, m.Drain):
        return False  # a person may say it as well
    agents = m.Exited | m.AgentJoin | m.AgentReady | m.AgentLeave
    return sender_of(request) is not None or isinstance(request, RenewAgent | m.Raised | m.Leave | agents)


def command_for_expiry(kind: str, ident: str) -> Command:
    """What time says when a lease of that kind is over."""
    match kind:
        case "member":
            return m.Expire(MemberId(ident))
        case "agent":
            return m.AgentExpire(AgentId(ident))
        case "suspect":
            return m.Suspect(MemberId(ident))
        case "agent-suspect":
            return m.AgentSuspect(AgentId(ident))
        case "save":
            return m.RequestCheckpoint("it is time")
        case _:
            return m.WaitOver()


def set_back(name: str, known: int, found: int) -> str:
    """What to say when somebody knows a revision that the store has lost."""
    return (
        f"the store has {name} at revision {found}, but revision {known} was acknowledged: an older copy of the store "
        "was put in its place. Put the newer one back, or cancel this job and create one under another name that "
        "resumes from the last checkpoint"
    )
