"""The story of a job in few lines: one for each change that a user cares about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass

from pliant.core import messages as m
from pliant.core.data.grid import Grid
from pliant.core.data.ledger import with_changes_of
from pliant.core.messages.commands import SCHEDULED
from pliant.core.messages.describe import describe
from pliant.core.model.launch import Launch
from pliant.core.model.names import MemberId
from pliant.core.model.world import World, WorldKind
from pliant.core.tasks.messages import EvaluationDone, ShardRaised, ShardReturned

CHECKPOINT_LINE_S = 60.0  # at most one line for scheduled checkpoints in this time


@dataclass(frozen=True, slots=True)
class Line:
    """One line; a problem is shown with --quiet as well."""

    text: str
    problem: bool = False


class Narrator:
    """Feed it every event in order; it returns the lines to show. `agent` is this machine's own, of which all know."""

    def __init__(self, agent: str, now: Callable[[], float]) -> None:
        self._agent = agent
        self._now = now
        self._formed: dict[int, World] = {}
        self._world: World | None = None  # the one that trains
        self._launch: Launch | None = None
        self._lost: set[MemberId] = set()  # of the world that trains
        self._requested = False  # a user or a drain asked for the next checkpoint
        self._checkpoint_told_at: float | None = None
        self._grid: Grid | None = None  # None: no worker has joined yet

    def narrate(self, event: m.Event) -> Iterator[Line]:
        match event:
            case m.WorldFormed(world=world):
                self._formed[world.number] = world
            case m.MemberJoined(terms=terms):
                self._grid = terms.grid
            case m.StepsCommitted(lines=lines):
                self._grid = with_changes_of(self._grid, lines) if self._grid is not None else None
            case m.WorldEntered(generation=generation):
                yield from self._entered(generation)
            case m.Launched(launch=launch):
                yield Line(self._describe_launch(launch))
                self._launch = launch
            case m.TargetChanged(target=target, why=why):
                yield Line(f"resizing to {describe_workers(target.size)}{f' ({why})' if why else ''}")
            case m.MemberGone(member=member, how=how, why=why) if how != "left":
                self._lost.add(member)
                yield Line(f"worker {member} was {how} ({why})", problem=True)
            case m.SeatEnded(end=end) if end.code:
                yield Line(describe(event), problem=True)
            case m.CheckpointRequested(why=why):
                self._requested = why != SCHEDULED
            case m.CheckpointPublished():
                yield from self._checkpoint(event)
            case m.StateChanged(state=state) if state.ended:
                yield Line(describe(event))
            case m.AgentJoined(agent=agent) | m.AgentGone(agent=agent) | m.AgentDraining(agent=agent):
                if agent != self._agent:
                    yield Line(describe(event))
            case m.SeatRefilled() | m.SettingsChanged() | EvaluationDone():
                yield Line(describe(event))
            case (
                m.CheckpointFailed()
                | m.CheckpointUnreadable()
                | m.SlotRaised()
                | m.StatesDiffered()
                | m.SlotDisputed()
                | m.PairAccused()
                | ShardRaised()
                | ShardReturned()
            ):
                yield Line(describe(event), problem=True)
            case _:
                pass  # shown with --verbose

    def first_rank(self, members: Sequence[str]) -> str:
        """Return the one of these members with the lowest rank now."""
        ranks: Sequence[MemberId] = ()
        if self._world is not None:
            ranks = self._world.members
        elif self._launch is not None:
            ranks = [seat.member for seat in self._launch.seats]
        return min(members, key=lambda member: ranks.index(MemberId(member)) if member in ranks else len(ranks))

    def _entered(self, generation: int) -> Iterator[Line]:
        world = self._formed.pop(generation, None)
        self._formed = {number: each for number, each in self._formed.items() if number > generation}
        if world is None or world.hold:
            return  # one of before this agent's time, or too small to train
        before, self._world = self._world, world
        size, step = describe_workers(len(world.members)), world.base.step
        rolled_back = world.kind is WorldKind.ROLLBACK
        if rolled_back and (before is not None or step):
            self._grid = self._grid.up_to(step) if self._grid is not None else None
            total = f" of {self._grid.total_steps}" if self._grid is not None else ""
            yield Line(f"training resumes at step {step}{total} with {size}")
        elif rolled_back:
            yield Line(f"training starts with {size}")
        elif before is None:
            yield Line(f"training with {size}")
        elif set(before.members) != set(world.members):
            change = _describe_change(before, world, self._lost)
            yield Line(f"training goes on with {size}{f' ({change})' if change else ''}")
        self._lost = self._lost.intersection(world.members)

    def _describe_launch(self, launch: Launch) -> str:
        size = describe_workers(len(launch.seats))
        if self._launch is None:
            return f"the script starts with {size}"
        return f"the script starts again with {size} ({launch.why})"

    def _checkpoint(self, event: m.CheckpointPublished) -> Iterator[Line]:
        now, told_at = self._now(), self._checkpoint_told_at
        requested, self._requested = self._requested, False
        if requested or told_at is None or now - told_at >= CHECKPOINT_LINE_S:
            self._checkpoint_told_at = now
            yield Line(describe(event))


def describe_workers(count: int) -> str:
    """Return `1 worker` or `2 workers`."""
    return "1 worker" if count == 1 else f"{count} workers"


def _describe_change(before: World, after: World, lost: Set[MemberId]) -> str:
    """Return which members joined and left; a line tells of each lost member already."""
    joined = [member for member in after.members if member not in before.members]
    gone = [member for member in before.members if member not in after.members and member not in lost]
    parts = [f"{_some(names)} {verb}" for names, verb in ((joined, "joined"), (gone, "left")) if names]
    return ", ".join(parts)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} workers"
