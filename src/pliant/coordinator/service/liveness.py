"""Who must be heard of again, and until when: leases, suspicions, the limit on waiting (rule 19, ADR 0005).

Signs of life change no state. They come here, cost the same however large the job is, and are forgotten with the
process; whoever takes over grants everything afresh, and so does a coordinator that has heard nobody at all for a
while: it was cut off itself (ADR 0019).
"""

from __future__ import annotations

from collections.abc import Callable

from pliant.coordinator.service.inbox import AgentWatchClosed, Request, WatchClosed, command_for_expiry, is_sign_of_life
from pliant.core import messages as m
from pliant.core.job.launches import is_stopping
from pliant.core.leases import IsolationDetector, Leases
from pliant.core.messages import Command, Rejection
from pliant.core.model.job import Job, JobState
from pliant.core.model.names import MemberId
from pliant.wire.api import Renew, RenewAgent

AGENT_SUSPICION_S = 1.0  # the same of an agent: with it went the workers it had launched
SUSPICION_S = 0.5  # a closed watch that does not come back within this ends the generation (rule 19)
ISOLATION_FRACTION = 0.5  # of a lease: who hears nobody at all for so long is cut off itself, and expires nobody
PAUSE_S = 1.0  # a longer gap between two looks is the coordinator's own sleep, and costs nobody a lease

Key = tuple[str, str, str]  # job, kind, name

_SUSPECTED = {"suspect": "member", "agent-suspect": "agent"}


class Liveness:
    """The leases of every job a coordinator knows; `ttl_s` is how long one lasts."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        # A sleep of our own must never be as long as a lease.
        self._leases: Leases[Key] = Leases(min(PAUSE_S, ttl_s / 4))
        self._leased: dict[str, set[Key]] = {}  # by job, so that no job pays for another
        self._silence = IsolationDetector(ttl_s * ISOLATION_FRACTION)
        self._anew: float | None = None  # when the last silence ended, in waking time
        self._hung_up: dict[Key, float | None] = {}  # who did not come back; when, if nobody was heard at that moment
        self._vouches: dict[str, tuple[int, float]] = {}  # by job, the generation that reported last, and when

    def follow(self, name: str, job: Job | None, now: float) -> None:
        """Call when a job's members may have changed: grant what is new, drop what is gone, leave the rest running."""
        wanted: dict[Key, float] = {}
        if job is not None and not job.state.ended:
            wanted = {(name, "member", member): self._ttl_s for member in job.members}
            wanted |= {(name, "agent", agent.id): self._ttl_s for agent in job.agents}
            if job.state is JobState.WAITING and job.spec.wait_limit_s is not None and not is_stopping(job):
                wanted[name, "wait", ""] = job.spec.wait_limit_s
            if (
                job.spec.checkpoints.seconds
                and job.state is JobState.RUNNING
                and job.terms is not None
                and job.checkpoint_wanted_at_step is None
            ):
                wanted[name, "save", ""] = job.spec.checkpoints.seconds
        leased = self._leased.setdefault(name, set())
        for key in leased.difference(wanted):
            self._leases.drop(key)
            self._hung_up.pop(key, None)
        for key, ttl_s in wanted.items():
            if key not in self._leases:
                self._leases.grant(key, ttl_s, now)
        self._leased[name] = set(wanted)

    # --------------------------------------------------------------------------------------- signs of life

    def knows(self, name: str, request: Renew | RenewAgent) -> bool:
        """Whether that member or agent is one of the job's."""
        return _key(name, request) in self._leased.get(name, ())

    def renew(self, name: str, job: Job | None, request: Renew | RenewAgent, now: float) -> Rejection | None:
        """Somebody said that it is alive."""
        key = _key(name, request)
        self.note_contact(now)
        self.clear_suspicion(name, request)
        if self._leases.renew(key, now) or (job is not None and job.state.ended):
            return None
        if self.knows(name, request):
            self._leases.grant(key, self._ttl_s, now)  # it ran out, but nobody could act on it yet
            return None
        if job is not None and isinstance(request, Renew) and request.member in job.gone:
            return Rejection(m.Code.GONE, f"{key[2]} is gone for good; join as a new member")
        return Rejection(m.Code.UNKNOWN, f"{key[2]} has no lease in {name}; join first")

    def renew_early(self, name: str, request: Request, now: float) -> None:
        """Call for what is in the inbox before asking what is due: a member that has renewed by now is not late."""
        if is_sign_of_life(request):
            self.note_contact(now)
        if isinstance(request, Renew | RenewAgent):
            self._leases.renew(_key(name, request), now)
            self.clear_suspicion(name, request)

    def suspect(self, name: str, job: Job | None, closed: WatchClosed | AgentWatchClosed, now: float) -> None:
        """A watch was closed from the other side: evidence against that one, however silent it is otherwise."""
        if job is None:
            return
        if isinstance(closed, WatchClosed) and closed.member in job.members:
            self._leases.grant((name, "suspect", closed.member), SUSPICION_S, now)
        elif isinstance(closed, AgentWatchClosed):
            self._leases.grant((name, "agent-suspect", closed.agent), AGENT_SUSPICION_S, now)

    def record_hangup(self, name: str, closed: WatchClosed | AgentWatchClosed, now: float) -> None:
        """A connection was closed from the other side, whether or not a watch was open on it.

        Without one that may be how a client works, so it is no suspicion. But if nobody comes back it was not we who
        were cut off.
        """
        if isinstance(closed, WatchClosed):
            self._record_hangup((name, "member", closed.member), now)
        else:
            self._record_hangup((name, "agent", closed.agent), now)

    def _record_hangup(self, key: Key, now: float) -> None:
        if key in self._leases:
            self._hung_up[key] = self._leases.awake(now) if self._silence.is_isolated(now) else None

    def note_contact(self, now: float) -> None:
        """A member or an agent was heard, of whatever job: it is not we who are cut off."""
        if self._silence.note_contact(now):
            self._anew = self._leases.awake(now)

    def isolated_s(self, now: float) -> float | None:
        """For how long nobody at all has been heard, if that is too long; infinite: never yet."""
        return self._silence.quiet_s(now) if self._silence.is_isolated(now) else None

    def clear_suspicion(self, name: str, request: Renew | RenewAgent) -> None:
        """Who says that it is alive is not suspected any more."""
        kind, who = ("suspect", request.member) if isinstance(request, Renew) else ("agent-suspect", request.agent)
        self._leases.drop((name, kind, who))
        self._hung_up.pop(_key(name, request), None)

    def renew_by_command(self, name: str, member: MemberId, now: float) -> None:
        """Whatever a member asks for is a sign of life."""
        self._leases.renew((name, "member", member), now)
        self._hung_up.pop((name, "member", member), None)

    def credit_generation(self, name: str, generation: int, now: float) -> None:
        """A report of a generation was accepted: a sign of life of each of its members (rule 19)."""
        self._vouches[name] = (generation, self._leases.awake(now))

    # ------------------------------------------------------------------------------------------- what is due

    def due(self, now: float, job: Callable[[str], Job | None]) -> list[tuple[str, Command]]:
        """What time itself has to say, each told once; `job` gives a job by its name."""

        def vouched(key: Key) -> float | None:
            signs = (self._credited_at(key, job(key[0])), self.exempt_until(key, now))
            return max((sign for sign in signs if sign is not None), default=None)

        over = self._leases.due(now, vouched)
        for name, kind, who in over:
            if kind in _SUSPECTED:
                self._record_hangup((name, _SUSPECTED[kind], who), now)
        return [(name, command_for_expiry(kind, ident)) for name, kind, ident in over]

    def _credited_at(self, key: Key, job: Job | None) -> float | None:
        if job is None or key[1] != "member":
            return None
        generation, when = self._vouches.get(key[0], (0, 0.0))
        world = job.world(generation)
        return when if world is not None and MemberId(key[2]) in world.members else None

    def exempt_until(self, key: Key, now: float) -> float | None:
        """Nobody is expired while nobody is heard; afterwards everybody's time begins anew.

        But who hung up was heard to do so: its silence is its own, and not everybody's. If nobody was heard just then
        its time begins with that: what is left of its lease is chance, and it may be on its way back to us.
        """
        if key[1] not in ("member", "agent"):
            return None
        if key in self._hung_up:
            return self._hung_up[key]
        return self._leases.awake(now) if self._silence.is_isolated(now) else self._anew

    def is_void(self, name: str, request: Request) -> bool:
        """Whether an expiry is void: who it is about was heard of again while the store could not be written."""
        match request:
            case m.Expire(member):
                return (name, "member", member) in self._leases
            case m.AgentExpire(agent):
                return (name, "agent", agent) in self._leases
            case _:
                return False


def _key(name: str, request: Renew | RenewAgent) -> Key:
    if isinstance(request, Renew):
        return (name, "member", request.member)
    return (name, "agent", request.agent)
