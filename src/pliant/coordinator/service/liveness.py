"""Leases, suspicions and deadlines of the jobs that a coordinator leads (rule 19, ADR 0005).

Signs of life change no state. They are kept here in memory only, and each costs the same however large the job is. A
coordinator that takes over grants every lease anew. So does one that received no message at all for a while, because it
was isolated itself (ADR 0019).
"""

from __future__ import annotations

from collections.abc import Callable

from pliant.coordinator.service.inbox import Sender, command_for_expiry, is_sign_of_life
from pliant.core import messages as m
from pliant.core.job.launches import is_stopping
from pliant.core.job.next_world import STOP_GRACE_S
from pliant.core.leases import IsolationDetector, Leases
from pliant.core.messages import Command, Rejection
from pliant.core.model.job import Job, JobState
from pliant.core.model.names import MemberId

SUSPICION_S = 0.5  # a member whose closed watch does not come back within this ends the generation (rule 19)
AGENT_SUSPICION_S = 1.0  # the same for an agent, whose launched workers end with it
ISOLATION_FRACTION = 0.5  # of a lease without any message: the coordinator is isolated and expires no member
PAUSE_S = 1.0  # a longer gap between two calls of `due` is a pause of the coordinator and not counted against leases

STOP_MARGIN_S = 5.0  # beyond the grace of its members, after which a stopping job ends

Key = tuple[str, str, str]  # job, kind, id

_SUSPICION = {"member": "suspect", "agent": "agent-suspect"}
_SUSPECTED = {suspicion: kind for kind, suspicion in _SUSPICION.items()}


class Liveness:
    """The leases of every job that a coordinator leads. A lease lasts `ttl_s`."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        # A pause of this process must never count for as long as a lease.
        self._leases: Leases[Key] = Leases(min(PAUSE_S, ttl_s / 4))
        self._leased: dict[str, set[Key]] = {}  # by job, so that no job pays for another
        self._isolation = IsolationDetector(ttl_s * ISOLATION_FRACTION)
        self._isolated_until: float | None = None  # the end of the last isolation, in waking time
        self._hangups: dict[Key, float | None] = {}  # closed and not back; with the time, if isolated at that moment
        self._credits: dict[str, tuple[int, float]] = {}  # by job, the generation that reported last, and the time

    def follow(self, name: str, job: Job | None, now: float) -> None:
        """Match the leases to a job whose members may have changed: grant new ones, drop old ones, keep the rest."""
        wanted: dict[Key, float] = {}
        if job is not None and not job.state.ended:
            wanted = {(name, "member", member): self._ttl_s for member in job.members}
            wanted |= {(name, "agent", agent.id): self._ttl_s for agent in job.agents}
            if job.state is JobState.WAITING and job.spec.wait_limit_s is not None and not is_stopping(job):
                wanted[name, "wait", ""] = job.spec.wait_limit_s
            if job.tasks is not None:
                deadline_s = job.tasks.terms.deadline_s
                wanted |= {(name, "shard", f"{each.attempt}:{each.upto}"): deadline_s for each in job.tasks.held}
            if job.state is JobState.STOPPING:
                wanted[name, "stop", ""] = STOP_GRACE_S + STOP_MARGIN_S
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
            self._hangups.pop(key, None)
        for key, ttl_s in wanted.items():
            if self._leases.ttl_s(key) != ttl_s:  # a new one, or another limit was set
                self._leases.grant(key, ttl_s, now)
        self._leased[name] = set(wanted)
        if not wanted and (job is None or job.state.ended):  # nothing is kept of jobs that ended
            del self._leased[name]
            self._credits.pop(name, None)

    # --------------------------------------------------------------------------------------- signs of life

    def is_leased(self, name: str, sender: Sender) -> bool:
        """Return whether the sender is a member or an agent of the job."""
        return (name, *sender) in self._leased.get(name, ())

    def renew(self, name: str, job: Job | None, sender: Sender, now: float) -> Rejection | None:
        """Renew the sender's lease. The rejection explains why it has none."""
        self.note_contact(now)
        self.clear_suspicion(name, sender)
        if self._leases.renew((name, *sender), now) or (job is not None and job.state.ended):
            return None
        if self.is_leased(name, sender):
            self._leases.grant((name, *sender), self._ttl_s, now)  # it expired, but the store could not be written
            return None
        if job is not None and sender.kind == "member" and sender.id in job.gone:
            return Rejection(m.Code.GONE, f"{sender.id} is gone for good; join as a new member")
        return Rejection(m.Code.UNKNOWN, f"{sender.id} has no lease in {name}; join first")

    def renew_early(self, name: str, sender: Sender, now: float) -> None:
        """Renew a lease before `due` is called, for a renewal that is answered after it: its sender is not late."""
        self.note_contact(now)
        self.clear_suspicion(name, sender)
        self._leases.renew((name, *sender), now)

    def renew_by_command(self, name: str, member: MemberId, now: float) -> None:
        """Renew the lease of a member whose command was accepted."""
        self._leases.renew((name, "member", member), now)
        self._hangups.pop((name, "member", member), None)

    def note_command(self, command: Command, now: float) -> None:
        """Count a command as contact, before `due` is called, if a member or an agent sent it."""
        if is_sign_of_life(command):
            self.note_contact(now)

    def note_contact(self, now: float) -> None:
        """Note a message of any member or agent of any job: this coordinator is not isolated."""
        if self._isolation.note_contact(now):
            self._isolated_until = self._leases.waking_time(now)

    def clear_suspicion(self, name: str, sender: Sender) -> None:
        self._leases.drop((name, _SUSPICION[sender.kind], sender.id))
        self._hangups.pop((name, *sender), None)

    def credit_generation(self, name: str, generation: int, now: float) -> None:
        """Note an accepted report of a generation as a sign of life of each of its members (rule 19)."""
        self._credits[name] = (generation, self._leases.waking_time(now))

    def isolated_s(self, now: float) -> float | None:
        """Return how long no message has arrived, if that is too long; infinite if none ever has."""
        return self._isolation.quiet_s(now) if self._isolation.is_isolated(now) else None

    def quiet_s(self, now: float) -> float:
        """Return how long no message has arrived; infinite if none ever has."""
        return self._isolation.quiet_s(now)

    @property
    def expects_messages(self) -> bool:
        """True if a job has a member or an agent, which must renew its lease."""
        return len(self._leases) > 0

    # ------------------------------------------------------------------------------------- closed connections

    def suspect(self, name: str, job: Job | None, sender: Sender, now: float) -> None:
        """Suspect a sender that closed its watch. This is evidence against that sender alone, even in isolation."""
        if job is None:
            return
        if sender.kind == "agent":
            self._leases.grant((name, "agent-suspect", sender.id), AGENT_SUSPICION_S, now)
        elif sender.id in job.members:
            self._leases.grant((name, "suspect", sender.id), SUSPICION_S, now)

    def record_hangup(self, name: str, sender: Sender, now: float) -> None:
        """Note that a sender closed its connection, whether or not a watch was open on it.

        Without a watch this may be how a client works, so it is no suspicion. But a sender that does not come back
        was not cut off by an isolation of the coordinator.
        """
        key = (name, *sender)
        if key in self._leases:
            self._hangups[key] = self._leases.waking_time(now) if self._isolation.is_isolated(now) else None

    # ------------------------------------------------------------------------------------------- what is due

    def due(self, now: float, job: Callable[[str], Job | None]) -> list[tuple[str, Command]]:
        """Return the commands for leases and deadlines that expired, each once. `job` looks up a job by name."""

        def last_sign(key: Key) -> float | None:
            signs = (self._credited_at(key, job(key[0])), self.exempt_until(key, now))
            return max((sign for sign in signs if sign is not None), default=None)

        over = self._leases.expired(now, last_sign)
        for name, kind, ident in over:
            if kind in _SUSPECTED:
                self.record_hangup(name, Sender(_SUSPECTED[kind], ident), now)
        return [(name, command_for_expiry(kind, ident)) for name, kind, ident in over]

    def _credited_at(self, key: Key, job: Job | None) -> float | None:
        if job is None or key[1] != "member":
            return None
        generation, when = self._credits.get(key[0], (0, 0.0))
        world = job.world(generation)
        return when if world is not None and MemberId(key[2]) in world.members else None

    def exempt_until(self, key: Key, now: float) -> float | None:
        """Return the time before which silence does not count against a lease; None if all of it counts.

        While the coordinator is isolated no lease runs. Afterwards every lease starts again. A sender that closed its
        connection is not exempt: its lease runs. If the coordinator was isolated at that moment, the lease restarts
        then, because the sender may be on its way back.
        """
        if key[1] not in _SUSPICION and key[1] != "shard":
            return None
        if key in self._hangups:
            return self._hangups[key]
        return self._leases.waking_time(now) if self._isolation.is_isolated(now) else self._isolated_until

    def is_void(self, name: str, command: Command) -> bool:
        """Return whether an expiry is void: its subject renewed while the store could not be written."""
        match command:
            case m.Expire(member):
                return (name, "member", member) in self._leases
            case m.AgentExpire(agent):
                return (name, "agent", agent) in self._leases
            case _:
                return False
