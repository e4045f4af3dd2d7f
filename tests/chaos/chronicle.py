"""A job's event log as it grows, and what follows from it: who is in the world, who holds the state, what changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pliant.client import Client
from pliant.core import messages as m
from pliant.core.model.checkpoint import Checkpoint
from pliant.core.model.job import JobState
from pliant.core.model.names import MemberId
from pliant.core.model.world import World, WorldKind
from pliant.errors import PliantError

STUCK_S = 150.0  # without a committed step nor any other event: that is no slowness any more


class Stuck(Exception):
    """The job does not go on, and nothing happens."""


@dataclass
class Scene:
    """The state of the job that the events up to now add up to."""

    state: JobState = JobState.STARTING
    why: str = ""
    target: int = 0
    pids: dict[MemberId, int] = field(default_factory=dict)  # of every member that ever joined
    live: set[MemberId] = field(default_factory=set)
    draining: set[MemberId] = field(default_factory=set)
    gone: dict[MemberId, m.MemberGone] = field(default_factory=dict)
    worlds: dict[int, World] = field(default_factory=dict)
    entered: int = 0
    broken: int = 0  # the last generation that cannot go on
    holders: frozenset[MemberId] = frozenset()
    step: int = 0
    rollbacks: int = 0  # worlds that go back to a checkpoint, or to the beginning
    published: list[Checkpoint] = field(default_factory=list)  # every checkpoint that ever counted
    unreadable: set[str] = field(default_factory=set)  # the names of those that turned out to be damaged

    def add(self, event: m.Event) -> None:
        match event:
            case m.JobCreated():
                self.target = event.spec.initial_target.size
            case m.TargetChanged():
                self.target = event.target.size
            case m.MemberJoined():
                self.pids[event.member.id] = event.member.pid
                self.live.add(event.member.id)
            case m.MemberDraining():
                self.draining.add(event.member)
            case m.MemberGone():
                self.gone[event.member] = event
                self.live.discard(event.member)
            case m.WorldFormed():
                self.worlds[event.world.number] = event.world
                if event.world.kind is WorldKind.ROLLBACK:
                    self.rollbacks += 1
                    self.step = event.world.base.step
            case m.WorldEntered():
                self.entered = event.generation
            case m.WorldBroken():
                self.broken = max(self.broken, event.generation)
            case m.HoldersChanged():
                self.holders = event.holders
            case m.StepsCommitted():
                self.step = event.lines[-1].lineage.step
            case m.CheckpointPublished():
                self.published.append(event.checkpoint)
            case m.CheckpointUnreadable() if event.damaged:
                self.unreadable.add(event.name)
            case m.StateChanged():
                self.state, self.why = event.state, event.why
            case _:
                pass

    @property
    def whole(self) -> list[Checkpoint]:
        """The checkpoints that ever counted, but for those that turned out to be damaged."""
        return [each for each in self.published if each.name not in self.unreadable]

    @property
    def ranked(self) -> list[MemberId]:
        """The live members of the current world, by rank."""
        world = self.worlds.get(self.entered)
        return [member for member in world.members if member in self.live] if world is not None else []

    @property
    def able(self) -> list[MemberId]:
        """Those of them that hold the state and stay."""
        return [member for member in self.ranked if member in self.holders and member not in self.draining]

    @property
    def change(self) -> str:
        """The change that is under way; empty: none is."""
        newest = max(self.worlds, default=0)
        if newest > self.entered:
            return f"generation {newest} formed, not entered"
        if self.broken >= self.entered > 0:
            return f"generation {self.entered} broken"
        world = self.worlds.get(self.entered)
        if world is not None and not set(world.members) & self.live <= self.holders:
            return "a member receives the state"
        return ""


class Chronicle:
    """Follows a job in a thread of its own until it is closed. Everything may be read under `changed`."""

    def __init__(self, client: Client, job: str) -> None:
        self.events: list[m.Event] = []
        self.scene = Scene()
        self.changed = threading.Condition()
        self.moved_at = time.monotonic()  # when the last event came
        self._client = client
        self._job = job
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="chronicle", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join(1.0)

    def ask(self, client: Client) -> None:
        """Call when the coordinator is to be found elsewhere from now on."""
        self._client = client

    @property
    def revision(self) -> int:
        return len(self.events)

    def since(self, revision: int) -> Iterator[Any]:
        """The events after a revision."""
        yield from self.events[revision:]

    def until(self, true: Callable[[Scene], object], limit_s: float | None = None) -> bool:
        """Wait until it is so. False after `limit_s`; `Stuck` if nothing moves at all for very long."""
        end = None if limit_s is None else time.monotonic() + limit_s
        with self.changed:
            while not true(self.scene):
                now = time.monotonic()
                if end is not None and now >= end:
                    return False
                if now - self.moved_at > STUCK_S:
                    raise Stuck(f"no event and no step for {STUCK_S:g} s; {self.scene.state}: {self.scene.why}")
                self.changed.wait(0.5 if end is None else min(0.5, max(end - now, 0.001)))
        return True

    def _follow(self) -> None:
        while not self._over.is_set():
            with suppress(PliantError):  # away: it is killed all the time
                for revision, event in self._client.follow(self._job, self.revision):
                    with self.changed:
                        assert revision == self.revision + 1, (revision, self.revision)
                        self.events.append(event)
                        self.scene.add(event)
                        self.moved_at = time.monotonic()
                        self.changed.notify_all()
                    if self._over.is_set():
                        return
            self._over.wait(0.05)
