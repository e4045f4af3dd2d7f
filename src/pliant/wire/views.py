"""Updates that carry a member's view without sending whole worlds again (rule 4 requires that it has them).

A view of a job of 2,000 members names all of them several times: in its worlds, among the holders, among those gone.
Sent to 2,000 watchers after every change, that would be gigabytes. So the coordinator sends a `ViewDelta` since a
revision that the member has, and writes lists of members as runs of ranks in a world that both sides have:

    generation 4 had a, b, c, d; in generation 5 c is gone and e came   ->   of 4: [0, 1], [3, 3], "e"

A delta is the same for all members at the same revision, so the server encodes it once. `ViewUpdate` adds the fields of
one member. `apply_update(before, update)` returns exactly the view on the coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby

from pliant.core.data.grid import Changes
from pliant.core.data.ledger import Lineage
from pliant.core.model.checkpoint import Checkpoint
from pliant.core.model.job import Job, JobState
from pliant.core.model.names import MemberId
from pliant.core.model.view import View, model_peers, spare_why
from pliant.core.model.world import World, WorldKind
from pliant.core.ps.model import BucketLayout
from pliant.core.tasks.model import ModelPeers
from pliant.errors import BadInput


@dataclass(frozen=True, slots=True)
class MemberRuns:
    """A list of members: runs of ranks in `generation` as (first, last) pairs, and names of the others."""

    generation: int
    runs: tuple[tuple[int, int] | str, ...]


@dataclass(frozen=True, slots=True)
class NewWorld:
    """A world the member does not have yet; `weights` are runs, as (weight, count) pairs.

    `addresses` has those of the members written as names; the others' are known. None: the world has no addresses.
    """

    number: int
    kind: WorldKind
    members: MemberRuns
    weights: tuple[tuple[int, int], ...]
    base: Lineage
    hold: bool
    why: str
    addresses: tuple[str, ...] | None
    rollback_generation: int = 0


@dataclass(frozen=True, slots=True)
class PeerKey:
    """The key by which members of a generation authenticate one another. Sent to its members only; never logged."""

    generation: int
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ViewDelta:
    """Changes since revision `since`; 0: the whole view. A number in `worlds` is a world that the member has."""

    since: int
    state: JobState
    why: str
    worlds: tuple[NewWorld | int, ...]
    current: int
    sealed: int
    unenterable_generations: frozenset[int]
    gone_in_open_worlds: MemberRuns
    holders: MemberRuns
    durable: Lineage
    checkpoint: Checkpoint | None
    kept_checkpoints: tuple[str, ...] = ()
    history_from_generation: int = 0
    written_parts: tuple[tuple[str, int], ...] = ()
    checkpoint_wanted: bool = False
    split_storage: bool = False
    save_steps: int = 0
    layout: BucketLayout | int | None = None  # a number: the one that the member has
    table_history: int = 0
    changes: Changes = ()
    model_peers: ModelPeers | None = None


@dataclass(frozen=True, slots=True)
class ViewUpdate:
    """The answer to a watch: the member's own fields, and the delta. Without a delta the wait is over: watch again.

    `durable` is the end of the durable history: progress alone does not end a wait.

    `generation` is the newest one that has the member, with its `rank` and `size`; 0, -1 and 0 if none has it. `keys`
    are those of its open generations, ascending. `spare_why` is the reason why it is a spare.
    """

    revision: int
    known: bool
    draining: bool
    grace_s: float
    generation: int
    rank: int
    size: int
    durable: Lineage
    keys: tuple[PeerKey, ...]
    spare_why: str = ""
    immediate: bool = False
    delta: ViewDelta | None = None  # the last field: the server appends it, encoded once for all members


def view_delta(before: View | None, after: View) -> ViewDelta:
    """Return the delta from `before` to `after`. The views must be of one job, `before` the older one."""
    had = {world.number: world for world in before.worlds} if before else {}
    reference = before.worlds[-1] if before and before.worlds else None
    newest = after.worlds[-1] if after.worlds else None
    return ViewDelta(
        since=before.revision if before else 0,
        state=after.state,
        why=after.why,
        worlds=tuple(
            world.number if had.get(world.number) == world else _new_world(world, reference) for world in after.worlds
        ),
        current=after.current,
        sealed=after.sealed,
        unenterable_generations=after.unenterable_generations,
        gone_in_open_worlds=_set(after.gone_in_open_worlds, newest),
        holders=_set(after.holders, newest),
        durable=after.durable,
        checkpoint=after.checkpoint,
        kept_checkpoints=after.kept_checkpoints,
        history_from_generation=after.history_from_generation,
        written_parts=after.written_parts,
        checkpoint_wanted=after.checkpoint_wanted,
        split_storage=after.split_storage,
        save_steps=after.save_steps,
        layout=_layout_since(before, after),
        table_history=after.table_history,
        changes=after.changes,
        model_peers=after.model_peers,
    )


def _layout_since(before: View | None, after: View) -> BucketLayout | int | None:
    known = before is not None and before.layout is not None and before.layout == after.layout
    return after.layout.number if known and after.layout is not None else after.layout


WorldPositions = Mapping[MemberId, tuple[int, int, int]]
"""For each member of an open world, the newest generation that has it, its rank there, and that world's size."""


def world_positions(job: Job) -> WorldPositions:
    """Return the position of each member. Call once for a change, for all members."""
    found: dict[MemberId, tuple[int, int, int]] = {}
    for world in job.worlds:
        size = len(world.members)
        found.update({member: (world.number, rank, size) for rank, member in enumerate(world.members)})
    return found


PeerKeys = Mapping[MemberId, tuple[PeerKey, ...]]
"""For each member of an open world, the keys of the generations that have it."""


def peer_keys(job: Job, key: Callable[[str, float, int], str]) -> PeerKeys:
    """Return the keys of each member. Call once for a change. Members of the same generations share one tuple."""
    found: dict[MemberId, tuple[PeerKey, ...]] = {}
    for world in job.worlds:
        another = PeerKey(world.number, key(job.name, job.created_at, world.number))
        longer: dict[tuple[PeerKey, ...], tuple[PeerKey, ...]] = {}
        for member in world.members:
            had = found.get(member, ())
            if had not in longer:
                longer[had] = (*had, another)
            found[member] = longer[had]
    if job.ps is not None:
        number = job.ps.layout.number
        layout = PeerKey(number, key(job.name, job.created_at, number))
        with_layout = {keys: (*keys, layout) for keys in {(), *found.values()}}
        found = {member: with_layout[found.get(member, ())] for member in job.members}
    if (peers := model_peers(job)) is not None:
        another = PeerKey(peers.number, key(job.name, job.created_at, peers.number))
        found.update({member: (*found.get(member, ()), another) for member in peers.members})
    return found


def member_update(
    job: Job, revision: int, member: MemberId, where: WorldPositions, keys: PeerKeys, durable: Lineage
) -> ViewUpdate:
    """Return the fields of one member, without the delta that is the same for all."""
    record = job.members.get(member)
    generation, rank, size = where.get(member, (0, -1, 0))
    return ViewUpdate(
        revision=revision,
        known=record is not None,
        draining=record is not None and record.draining,
        grace_s=record.grace_s if record else 0.0,
        generation=generation,
        rank=rank,
        size=size,
        durable=durable,
        keys=keys.get(member, ()) if record is not None else (),
        spare_why=spare_why(job, member),
        immediate=record is not None and record.immediate,
    )


def apply_update(before: View | None, update: ViewUpdate) -> View:
    """Return the view after an update. BadInput if its delta does not start from the revision of `before`."""
    change = update.delta
    if change is None:
        raise BadInput("This update has no delta; keep the current view.")
    if change.since and (before is None or before.revision != change.since):
        has = "no view" if before is None else f"revision {before.revision}"
        raise BadInput(f"This delta starts from revision {change.since}, this member has {has}; watch again from 0.")
    known = {world.number: world for world in before.worlds} if before and change.since else {}
    worlds = tuple(_world(item, known) for item in change.worlds)
    every_world = known | {world.number: world for world in worlds}
    return View(
        revision=update.revision,
        state=change.state,
        why=change.why,
        known=update.known,
        draining=update.draining,
        grace_s=update.grace_s,
        worlds=worlds,
        current=change.current,
        sealed=change.sealed,
        unenterable_generations=change.unenterable_generations,
        gone_in_open_worlds=frozenset(_members(change.gone_in_open_worlds, every_world)),
        holders=frozenset(_members(change.holders, every_world)),
        durable=change.durable,
        checkpoint=change.checkpoint,
        kept_checkpoints=change.kept_checkpoints,
        history_from_generation=change.history_from_generation,
        written_parts=change.written_parts,
        checkpoint_wanted=change.checkpoint_wanted,
        split_storage=change.split_storage,
        save_steps=change.save_steps,
        immediate=update.immediate,
        spare_why=update.spare_why,
        layout=_layout(change.layout, before),
        table_history=change.table_history,
        changes=change.changes,
        model_peers=change.model_peers,
    )


# --------------------------------------------------------------------------------------------------- writing


def _new_world(world: World, reference: World | None) -> NewWorld:
    weights = tuple((weight, len(list(run))) for weight, run in groupby(world.weights))
    ranks = _ranks(reference)
    addresses: tuple[str, ...] | None = None
    if world.addresses:
        where = dict(zip(world.members, world.addresses, strict=True))
        # A safeguard: addresses do not change. A member whose address differs is written as a name.
        ranks = {name: rank for name, rank in ranks.items() if where.get(name) == _address(reference, rank)}
        addresses = tuple(address for name, address in where.items() if name not in ranks)
    members = _names(world.members, reference, ranks)
    of = (world.base, world.hold, world.why, addresses, world.rollback_generation)
    return NewWorld(world.number, world.kind, members, weights, *of)


def _set(members: frozenset[MemberId], reference: World | None) -> MemberRuns:
    ranks = _ranks(reference) if members else {}
    return _names(sorted(members, key=lambda name: (ranks.get(name, len(ranks)), name)), reference, ranks)


def _ranks(reference: World | None) -> dict[MemberId, int]:
    return {name: rank for rank, name in enumerate(reference.members)} if reference else {}


def _address(world: World | None, rank: int) -> str:
    return world.addresses[rank] if world is not None and world.addresses else ""


def _names(members: Iterable[MemberId], reference: World | None, ranks: Mapping[MemberId, int]) -> MemberRuns:
    items: list[tuple[int, int] | str] = []
    for name in members:
        rank = ranks.get(name)
        last = items[-1] if items else None
        if rank is None:
            items.append(name)
        elif isinstance(last, tuple) and last[1] + 1 == rank:
            items[-1] = (last[0], rank)
        else:
            items.append((rank, rank))
    of = reference.number if reference and any(isinstance(item, tuple) for item in items) else 0
    return MemberRuns(of, tuple(items))


# --------------------------------------------------------------------------------------------------- reading


def _layout(item: BucketLayout | int | None, before: View | None) -> BucketLayout | None:
    if not isinstance(item, int):
        return item
    known = before.layout if before is not None else None
    if known is None or known.number != item:
        raise BadInput(f"This delta refers to layout {item}, which this member does not have; watch again from 0.")
    return known


def _world(item: NewWorld | int, known: Mapping[int, World]) -> World:
    if isinstance(item, int):
        if item not in known:
            raise BadInput(
                f"This delta refers to generation {item}, which this member does not have; watch again from 0."
            )
        return known[item]
    members = _members(item.members, known)
    weights = tuple(weight for weight, count in item.weights for _ in range(min(count, len(members) + 1)))
    if len(weights) != len(members):
        raise BadInput(f"Generation {item.number} has {len(members)} members and {len(weights)} weights.")
    addresses = _addresses(item.members, item.addresses, known) if item.addresses is not None else ()
    of = (item.base, item.hold, item.why, addresses, item.rollback_generation)
    return World(item.number, item.kind, members, weights, *of)


def _addresses(names: MemberRuns, given: tuple[str, ...], known: Mapping[int, World]) -> tuple[str, ...]:
    reference = known.get(names.generation)
    named = [item for item in names.runs if isinstance(item, str)]
    if len(named) != len(given):
        raise BadInput(f"{len(named)} members are named in a world, with {len(given)} addresses; watch again from 0.")
    new = iter(given)
    found: list[str] = []
    for item in names.runs:
        if isinstance(item, str):
            found.append(next(new))
        else:
            found.extend(_address(reference, rank) for rank in range(item[0], item[1] + 1))
    return tuple(found)


def _members(names: MemberRuns, known: Mapping[int, World]) -> tuple[MemberId, ...]:
    reference = known.get(names.generation)
    found: list[MemberId] = []
    for item in names.runs:
        if isinstance(item, str):
            found.append(MemberId(item))
        elif reference is None or not 0 <= item[0] <= item[1] < len(reference.members):
            raise BadInput(
                f"Ranks {item[0]} to {item[1]} of generation {names.generation} name no members; watch again from 0."
            )
        else:
            found.extend(reference.members[item[0] : item[1] + 1])
    return tuple(found)
