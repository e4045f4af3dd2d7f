"""The state of a member's machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from pliant.core.data.grid import Changes
from pliant.core.data.ledger import GENESIS, LedgerLine, Lineage, add_digests
from pliant.core.data.line_run import LineRun
from pliant.core.member.control_words import CALM, FINISH, GOING_ON, slots_checksum
from pliant.core.member.signals import Admission, Shares, Stripe, WriteDone, WriteFailed
from pliant.core.model.job import Dispute, Terms
from pliant.core.model.names import MemberId
from pliant.core.model.view import View
from pliant.core.model.world import World


class Phase(StrEnum):
    """The condition a member waits for."""

    OUTSIDE = "outside"  # in no world yet: joining, or a spare
    RESTORING = "restoring"  # the base of a rollback world to be loaded
    COMPUTING = "computing"  # the user's code to compute slots
    COLLECTING = "collecting"  # a collective to return
    APPLIED = "applied"  # the user's post-step code to return for the next step
    CATCHING_UP = "catching up"  # the winner's gradient or state
    INSTALLING = "installing"  # the received state to be installed
    STOPPED = "stopped"  # a recovery world to be announced and wired
    HOLDING = "holding"  # more members, in a world too small to train
    LINGERING = "lingering"  # its release
    DONE = "done"  # the coordinator to accept the last steps
    GONE = "gone"


IN_USER_CODE = frozenset({Phase.COMPUTING, Phase.APPLIED})
"""Phases in which user code runs and the worker cannot be interrupted."""


@dataclass(frozen=True, slots=True)
class KeptGradients:
    """Local gradients kept apart from the reduction buffers (rule 14), with the totals counted into them."""

    base: Lineage = GENESIS
    slots: frozenset[int] = frozenset()
    samples: int = 0
    slot_checksum: int = 0
    digest: int = 0

    def with_slots(self, slots: frozenset[int], samples: int, digest: int) -> KeptGradients:
        return KeptGradients(
            base=self.base,
            slots=self.slots | slots if self.slots else slots,
            samples=self.samples + samples,
            slot_checksum=add_digests(self.slot_checksum, slots_checksum(slots)),
            digest=add_digests(self.digest, digest),
        )


@dataclass(frozen=True, slots=True)
class FollowedStep:
    """A step that a member without state observed, with the hash of the state it was applied to (rule 15)."""

    line: LedgerLine
    state_hash: int


@dataclass(frozen=True, slots=True)
class PartInProgress:
    """This member's part of a checkpoint. It is `confirmed` once its step is committed."""

    lineage: Lineage
    name: str
    part: int
    count: int
    confirmed: bool = False


@dataclass
class Machine:
    """One member's state. `react` copies it before any change, so a published value never changes.

    The grid in `terms` has the changes of the batch up to its own step, or up to the one it followed.
    It has no slots: copying one dictionary is ten times faster than copying forty attributes.
    """

    id: MemberId
    terms: Terms
    can_save: bool = True  # it has storage for checkpoints
    phase: Phase = Phase.OUTSIDE
    view: View | None = None

    # The world it is in.
    world: World | None = None
    rank: int = -1
    previous_world: World | None = None  # the world it switched from, until a collective completes here (rule 9)
    entered: bool = False  # a collective completed in this world
    in_flight: bool = False  # an operation of this world's group has not returned
    stop_reason: str = ""  # the reason to stop at the next safe moment; empty: none
    blamed_peer: MemberId | None = None  # the member that the failed collective named
    diverged: bool = False  # members of this world hold different states of one history
    suspects: tuple[MemberId, ...] = ()  # members whose state differs from the majority's
    disputes: tuple[Dispute, ...] = ()  # slots for which two members computed different gradients
    stateless: bool = False  # the comparison found no usable holder of the state
    holders: frozenset[int] = frozenset()  # ranks that hold the state, by the latest words
    draining_ranks: frozenset[int] = frozenset()  # ranks that drain, by the latest words
    cannot_save_ranks: frozenset[int] = frozenset()  # ranks that cannot save, by the latest words
    switch_to: int = 0  # the generation to enter at the boundary, by the latest words
    closing: bool = False  # all members must leave now, by the latest words

    # Its state and its position in the history.
    lineage: Lineage = GENESIS
    holds_state: bool = False
    state_hash: int = 0
    applied_line: LedgerLine | None = None  # applied, not committed
    committed_lines: LineRun = field(default_factory=LineRun)  # committed, not durable
    kept_gradients: KeptGradients = field(default_factory=KeptGradients)
    slots_to_compute: frozenset[int] = frozenset()  # not computed yet by the user's code
    recovery_shares: Shares = ()  # slots of each rank in the interrupted step, by the comparison
    shares: Shares = ()  # slots of each rank in the current step
    catch_up_to: Lineage | None = None  # the winning lineage that this member has to reach
    compare_again: bool = False  # a member held no state; all compare again once it does
    donors: tuple[MemberId, ...] = ()  # members at the winning lineage in the comparison
    donor_changes: Changes = ()  # of the batch, in the winning history
    behind_ranks: frozenset[int] = frozenset()  # ranks that held an older state in the comparison

    # Wiring of future worlds.
    wiring_generation: int = 0
    wired_worlds: tuple[World, ...] = ()
    unwirable_generation: int = 0  # the highest generation whose wiring failed
    unwirable_peer: MemberId | None = None
    admission: Admission | None = None

    # Receiving a state.
    fetching: bool = False
    quiet_ticks: int = 0
    stripes: tuple[Stripe, ...] = ()
    received_state: Stripe | None = None
    followed_steps: tuple[FollowedStep, ...] = ()
    followed_lineage: Lineage = GENESIS  # without state: the lineage of the others

    # Leaving.
    drain_urgency: int = CALM
    grace_s: float = inf  # the shortest grace period that it was given
    grace_is_short: bool = False  # what is left of it is just enough to save
    last_chance_save: Lineage | None = None  # the state that it saved alone since then, or tried to
    released_by: int = 0

    # The end of the job before its last step.
    ending: int = GOING_ON  # of its own user code, or FINISH once the words ended the job
    finish_why: str = ""  # the reason of its user code

    # Checkpoints and reports.
    part_in_progress: PartInProgress | None = None  # a part of a checkpoint, until it is written
    unpublished_part: WriteDone | None = None  # written, not yet confirmed by the coordinator
    unreported_failure: WriteFailed | None = None  # not written, not yet confirmed by the coordinator
    abandoned_checkpoints: frozenset[str] = frozenset()  # never complete, by the coordinator's list
    checkpoint_wanted: bool = False  # a checkpoint is wanted, by the latest words
    end_ticks: int = 0  # since the job finished and this member's part was written
    saves_alone: bool = False  # this member saves the last state alone, or tried to
    collected_after: str = ""  # the newest checkpoint whose predecessors were garbage-collected
    stale_ticks: int = 0

    def copy(self) -> Machine:
        twin = object.__new__(Machine)
        twin.__dict__.update(self.__dict__)
        return twin

    @property
    def committed_step(self) -> int:
        """The last step that is known to be committed.

        A collective showed it, the coordinator has recorded it, or the others went on from it in the next world.
        """
        recorded = self.view is not None and self.view.durable == self.lineage
        return self.lineage.step - (self.applied_line is not None and not recorded and not self.released_by)

    @property
    def is_at_end(self) -> bool:
        """True if no step follows the one that this member applied, or followed, last."""
        step = self.lineage.step if self.holds_state else self.followed_lineage.step
        return self.ending == FINISH or step == self.terms.grid.total_steps

    @property
    def generation(self) -> int:
        """The generation of the current world; 0 outside of a world."""
        return self.world.number if self.world else 0
