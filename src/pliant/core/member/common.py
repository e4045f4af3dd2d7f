"""Operations shared by all phases of the member state machine."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from pliant.core.data.grid import deal_slots, idle_slot, slot_set
from pliant.core.data.ledger import LedgerLine, Lineage
from pliant.core.member.control_words import FINISH, Purpose, Word, Words, diverged, minority, winner
from pliant.core.member.signals import (
    Action,
    Admission,
    Break,
    Collect,
    Compute,
    Exit,
    Fetch,
    Released,
    Save,
    Send,
    SendToPeer,
    Shares,
    Wire,
)
from pliant.core.member.state import KeptGradients, Machine, Phase
from pliant.core.messages import Leave, Report, Stopped, WiringFailed
from pliant.core.messages.describe import describe_dispute
from pliant.core.model.checkpoint import NEVER_WHOLE
from pliant.core.model.job import Dispute
from pliant.core.model.names import MemberId
from pliant.core.model.world import World, WorldKind

REPORTERS = 2  # members that report progress (rule 24)
LINES_MAX = 512  # of one report; after a long absence of the coordinator several reports follow
LOOP_LEFT = "the training loop was left"
STALE_TICKS = 3  # ticks without an answer before the other members report too

Out = list[Action]


# ------------------------------------------------------------------------------------------- collectives


def start_collective(m: Machine, out: Out, purpose: Purpose, state: int | None = None, batch: int = 0) -> None:
    """Enter the next collective of this world. `state` is the hash of its state, if a fresh one was computed.

    `batch` is the one that user code wants after this step; 0: it has not set any. The fresh hash is not stored: a
    comparison must send the same hash whether or not the member reached its reduction.
    """
    world = world_of(m)
    wired = m.wired_worlds[-1] if m.wired_worlds else None
    step = purpose is Purpose.STEP
    word = Word(
        purpose=purpose,
        generation=world.number,
        step=m.lineage.step + 1 if step and m.holds_state else 0,
        lineage=m.lineage,
        holds=m.holds_state,
        state=(m.state_hash if state is None else state) if m.holds_state else 0,
        wired=wired.number if wired else 0,
        wired_needed=len(set(world.members).intersection(wired.members)) if wired else 0,
        drain_urgency=m.drain_urgency,
        wants_checkpoint=step and _wants_checkpoint(m),
        can_save=m.can_save,
        ending=m.ending,
        slots=len(m.kept_gradients.slots) if step else 0,
        samples=m.kept_gradients.samples if step else 0,
        slot_checksum=m.kept_gradients.slot_checksum if step else 0,
        digest=m.kept_gradients.digest if step else 0,
        kept=m.kept_gradients.slots if purpose is Purpose.HELLO and m.kept_gradients.base == m.lineage else frozenset(),
        next_batch=0 if batch == m.terms.grid.newest_batch else batch,
        changes=m.terms.grid.changes if purpose is Purpose.HELLO else (),
    )
    m.phase = Phase.COLLECTING
    m.in_flight = True
    # A state compared outside of a step may be saved next, so its hash must be fresh (rule 1).
    whole = m.holds_state and m.terms.verify > 0 and not step
    out.append(Collect(world, word, m.shares if step else (), whole))


def _wants_checkpoint(m: Machine) -> bool:
    """Return whether a checkpoint is wanted that no member is writing yet, as far as this member can see."""
    view = m.view
    if view is None or not view.checkpoint_wanted:
        return False
    under_way = any(part != NEVER_WHOLE for _, part in view.written_parts)
    return m.holds_state and m.part_in_progress is None and m.unpublished_part is None and not under_way


def start_step(m: Machine, out: Out) -> None:
    """Start the next step: compute this member's slots, or an idle slot so that the loop's body runs (rule 22).

    A member without state computes nothing. It follows the collectives of the others until it holds the state.
    """
    world, grid = world_of(m), m.terms.grid
    step = history_position(m).step + 1
    weights = tuple([weight if rank in m.holders else 0 for rank, weight in enumerate(world.weights)])
    m.shares = m.recovery_shares or _slots_by_rank(grid.slots, weights, len(grid.filled(step)))
    m.recovery_shares = ()
    if not m.holds_state:
        start_collective(m, out, Purpose.STEP)
        return
    if m.kept_gradients.base != m.lineage:
        m.kept_gradients = KeptGradients(base=m.lineage)
    mine, kept = m.shares[m.rank], m.kept_gradients.slots
    if kept:
        mine = tuple([slot for slot in mine if slot not in kept])
    m.slots_to_compute = slot_set(mine)
    m.phase = Phase.COMPUTING
    if mine:
        out.append(Compute(step, mine, idle=False))
    else:
        out.append(Compute(step, (idle_slot(grid, step, m.rank),), idle=True))


@lru_cache(maxsize=256)
def _slots_by_rank(slots: int, weights: tuple[int, ...], filled: int) -> Shares:
    """Return the slots of each rank in a step whose first `filled` slots hold samples. Most steps share one result."""
    if not any(weights):
        return tuple(() for _ in weights)  # the donor did not know the holders; the next words list them
    return tuple(tuple(slot for slot in run if slot < filled) for run in deal_slots(slots, weights))


def commit_lineage(m: Machine, out: Out, lineage: Lineage) -> None:
    """Mark `lineage` as committed: a collective showed that every holder had applied it (rule 1)."""
    if m.applied_line is None or m.applied_line.lineage != lineage:
        return
    m.committed_lines = m.committed_lines.added(m.applied_line)
    m.applied_line = None
    if m.part_in_progress is not None and m.part_in_progress.lineage == lineage:
        confirm_save(m, out)


# ------------------------------------------------------------------------------------------------ worlds


def enter_world(m: Machine, world: World) -> None:
    """Make `world` the current one, and drop the wired groups of lower generations."""
    m.world = world
    m.rank = world.members.index(m.id)
    m.entered = False
    m.stop_reason = ""
    m.blamed_peer = None
    m.stateless = False
    m.diverged = False
    m.suspects = ()
    m.disputes = ()
    m.holders = frozenset()
    m.draining_ranks = frozenset()
    m.cannot_save_ranks = frozenset()
    m.switch_to = 0
    m.closing = False
    m.recovery_shares = ()
    m.catch_up_to = None
    m.behind_ranks = frozenset()
    m.compare_again = False
    m.previous_world = None
    m.wired_worlds = tuple(other for other in m.wired_worlds if other.number > world.number)
    m.admission = None


def wire_next_world(m: Machine, out: Out) -> None:
    """Wire the newest world that this member belongs to and may enter; one wiring at a time (rules 7, 10)."""
    view = m.view
    if view is None or m.phase in (Phase.GONE, Phase.DONE):
        return
    above = max(m.generation, m.unwirable_generation, m.wired_worlds[-1].number if m.wired_worlds else 0)
    stopped = m.phase in (Phase.STOPPED, Phase.HOLDING, Phase.LINGERING) or bool(m.stop_reason)
    goal = None
    for world in reversed(view.worlds):
        if world.number <= above:
            break
        if m.id in world.members and not (stopped and world.kind is WorldKind.PLANNED):
            goal = world
            break
    if goal is None or goal.number == m.wiring_generation:
        return
    if m.wiring_generation:
        out.append(Break(m.wiring_generation))
    m.wiring_generation = goal.number
    out.append(Wire(goal))


def stop_in_world(m: Machine, out: Out, why: str, peer: MemberId | None = None) -> None:
    """Apply nothing more in this generation, report it, and wait for a recovery world (rule 10)."""
    m.phase = Phase.STOPPED
    m.stop_reason = why
    m.blamed_peer = peer
    m.switch_to = 0
    m.closing = False
    m.fetching = False
    m.stripes = ()
    m.received_state = None
    m.followed_steps = ()
    out.append(Break(m.generation))
    report_stopped(m, out)
    wire_next_world(m, out)


def stop_on_disagreement(m: Machine, out: Out, words: Words, why: str) -> None:
    """Stop because the control words disagree. A member whose state differs from the majority's drops its gradients."""
    m.diverged = diverged(words)
    m.followed_lineage = winner(words) or m.followed_lineage
    if m.terms.verify:
        m.suspects = tuple(world_of(m).members[rank] for rank in sorted(minority(words)))
    if m.id in m.suspects:
        m.kept_gradients = KeptGradients(base=m.lineage)
    stop_in_world(m, out, why)


def stop_on_dispute(m: Machine, out: Out, disputes: tuple[Dispute, ...]) -> None:
    """Stop because gradients that must be equal differ. Members in a dispute compute all their slots again."""
    m.disputes = disputes
    if any(m.id in (each.a, each.b) for each in disputes):
        m.kept_gradients = KeptGradients(base=m.lineage)
    stop_in_world(m, out, describe_dispute(history_position(m).step + 1, disputes[0]))


def report_stopped(m: Machine, out: Out) -> None:
    if m.view is not None and m.view.sealed >= m.generation:
        return  # the coordinator has sealed this generation already
    kept = m.kept_gradients.slots if m.kept_gradients.base == m.lineage else frozenset()
    doubts = (m.stateless, m.diverged, m.suspects, m.disputes)
    out.append(Send(Stopped(m.id, m.generation, history_position(m), kept, m.stop_reason, m.blamed_peer, *doubts)))


def report_unwirable(m: Machine, out: Out) -> None:
    out.append(Send(WiringFailed(m.id, m.unwirable_generation, m.unwirable_peer)))


def admit_joiners(m: Machine, out: Out) -> None:
    """Send an admission to each member that is new in the planned world just entered."""
    world, before = world_of(m), m.previous_world
    if before is None:
        return
    donors = tuple(world.members[rank] for rank in sorted(m.holders))
    for member in world.members:
        if member not in before.members:
            out.append(SendToPeer(member, Admission(world.number, history_position(m), donors, m.terms.grid.changes)))


def release_leavers(m: Machine, out: Out) -> None:
    """Release the members that linger in the previous world: a collective completed in this one (rule 9)."""
    world, before = world_of(m), m.previous_world
    if before is None:
        return
    for member in before.members:
        if member not in world.members:
            out.append(SendToPeer(member, Released(world.number)))
    out.append(Break(before.number))
    m.previous_world = None


# ----------------------------------------------------------------------------- reports, checkpoints, leaving


def report_progress(m: Machine, out: Out) -> None:
    """Report committed lines that are not durable, and the holders if the coordinator's list differs."""
    view = m.view
    world = world_of(m)
    holding = frozenset(world.members[rank] for rank in m.holders)
    news = view is None or view.current != world.number or view.holders != holding
    ended_early = m.phase is Phase.DONE and m.ending == FINISH and len(m.committed_lines) <= LINES_MAX
    out.append(
        Send(
            Report(
                m.id,
                m.rank,
                world.number,
                m.committed_lines[:LINES_MAX],
                holding if news else None,
                finished=(m.finish_why or LOOP_LEFT) if ended_early else "",
            )
        )
    )


def is_reporter(m: Machine) -> bool:
    return m.rank in sorted(m.holders)[:REPORTERS]


def confirm_save(m: Machine, out: Out) -> None:
    """Confirm the part that this member began to write: its step is committed (rule 17)."""
    if m.part_in_progress is not None and not m.part_in_progress.confirmed:
        m.part_in_progress = replace(m.part_in_progress, confirmed=True)
        out.append(Save(m.part_in_progress.name))


def start_fetch(m: Machine, out: Out, donors: tuple[MemberId, ...]) -> None:
    """Start to receive the state. Stripes of an earlier attempt are discarded."""
    m.fetching = True
    m.quiet_ticks = 0
    m.stripes = ()
    m.received_state = None
    out.append(Fetch(m.generation, donors))


def leave_job(m: Machine, out: Out, code: int, why: str, *, complete: bool = False) -> None:
    """Leave the job for good."""
    m.phase = Phase.GONE
    if m.wiring_generation:
        out.append(Break(m.wiring_generation))
    if m.world is not None:
        out.append(Break(m.generation))
    out.append(Send(Leave(m.id, m.released_by, why)))
    out.append(Exit(code, why, complete))


def world_of(m: Machine) -> World:
    """Return the current world of a member that must be in one."""
    if m.world is None:
        raise AssertionError(f"member {m.id} is in no world")
    return m.world


def history_position(m: Machine) -> Lineage:
    """Return the lineage of the state this member holds, or of the last step it followed."""
    return m.lineage if m.holds_state else m.followed_lineage


def unreported_lines(m: Machine) -> tuple[LedgerLine, ...]:
    """Return the ledger lines that a joiner needs in order to report in this member's place."""
    return tuple(m.committed_lines) if m.applied_line is None else (*m.committed_lines, m.applied_line)
