"""What a member knows: the machine's state."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from pliant.core.data.ledger import GENESIS, LedgerLine, Lineage, add_digests
from pliant.core.member.control_words import CALM, slots_checksum
from pliant.core.member.signals import Admission, Shares, Stripe, WriteDone, WriteFailed
from pliant.core.model.job import Dispute, Terms
from pliant.core.model.names import MemberId
from pliant.core.model.view import View
from pliant.core.model.world import World


class Phase(StrEnum):
    """What a member is waiting for."""

    OUTSIDE = "outside"  # in no world yet: joining, or a spare
    RESTORING = "restoring"  # the base of a rollback world to be loaded
    COMPUTING = "computing"  # the user's code to compute slots
    COLLECTING = "collecting"  # a collective to return
    APPLIED = "applied"  # the user's post-step code to come back for the next part
    CATCHING_UP = "catching up"  # the winner's gradient or state
    INSTALLING = "installing"  # the state received aside to be put in place
    STOPPED = "stopped"  # a recovery world to be told of and wired
    HOLDING = "holding"  # more members, in a world too small to train
    LINGERING = "lingering"  # word that it may go
    DONE = "done"  # the coordinator to take the last steps
    GONE = "gone"


IN_USER_CODE = frozenset({Phase.COMPUTING, Phase.APPLIED})
"""Phases in which the worker cannot be interrupted: the user's code runs."""


@dataclass(frozen=True, slots=True)
class KeptGradients:
    """The local gradients kept apart from the reduction buffers (rule 14), and what was counted into them."""

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
    """A step a member without state saw go by, with the hash of the state it was applied to (rule 15)."""

    line: LedgerLine
    state_hash: int


@dataclass(frozen=True, slots=True)
class PartInProgress:
    """This member's part of a checkpoint. It counts once the step is committed: then it is `ordered`."""

    lineage: Lineage
    name: str
    part: int
    count: int
    confirmed: bool = False


@dataclass
class Machine:
    """One member's state. `react` copies it before it changes anything, so a value once given out stays as it is.

    No slots: a dictionary is copied ten times faster than forty attributes one by one.
    """

    id: MemberId
    terms: Terms
    can_save: bool = True  # whether it has a place to write checkpoints to
    phase: Phase = Phase.OUTSIDE
    view: View | None = None

    # The world it is in.
    world: World | None = None
    rank: int = -1
    previous_world: World | None = None  # the world it switched from, until a collective here completed (rule 9)
    entered: bool = False  # a collective completed in this world
    in_flight: bool = False  # an operation of this world's group has not returned
    stop_reason: str = ""  # why it must stop at the next safe moment
    blamed_peer: MemberId | None = None  # whom the failed collective named
    diverged: bool = False  # members of this world hold different states of one history
    suspects: tuple[MemberId, ...] = ()  # those of them whose state is not the majority's
    disputes: tuple[Dispute, ...] = ()  # slots on which members of this world got other gradients
    stateless: bool = False  # the comparison found nobody to go on from
    holders: frozenset[int] = frozenset()  # ranks that hold the state, by the latest words
    draining_ranks: frozenset[int] = frozenset()  # ranks that drain, by the latest words
    cannot_save_ranks: frozenset[int] = frozenset()  # ranks that cannot save, by the latest words
    switch_to: int = 0  # the generation the words said to enter at the boundary
    closing: bool = False  # the words said that everybody must go now

    # Its state and its place in the history.
    lineage: Lineage = GENESIS
    holds_state: bool = False
    state_hash: int = 0
    applied_line: LedgerLine | None = None  # applied, not committed
    committed_lines: tuple[LedgerLine, ...] = ()  # committed, not durable
    kept_gradients: KeptGradients = field(default_factory=KeptGradients)
    slots_to_compute: frozenset[int] = frozenset()  # slots the user's code still has to compute
    recovery_shares: Shares = ()  # who brings which slots into the step in flight, as the comparison decided
    shares: Shares = ()  # who brings which slots into the step under way
    catch_up_to: Lineage | None = None  # the winner this member has to catch up with
    compare_again: bool = False  # somebody held nothing when everybody compared: once all hold, they compare again
    donors: tuple[MemberId, ...] = ()  # who was at the winner's lineage when everybody compared

    # Wiring of worlds to come.
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
    followed_lineage: Lineage = GENESIS  # without a state: where the others are

    # Going.
    drain_urgency: int = CALM
    released_by: int = 0

    # Checkpoints and reports.
    part_in_progress: PartInProgress | None = None  # a part of a checkpoint, until it is written
    unpublished_part: WriteDone | None = None  # written, and the coordinator may not know yet
    unreported_failure: WriteFailed | None = None  # not written, and the coordinator may not know yet
    abandoned_checkpoints: frozenset[str] = (
        frozenset()
    )  # checkpoints that will never be whole, as far as the coordinator remembers
    checkpoint_wanted: bool = False  # the words said that a checkpoint is wanted
    end_ticks: int = 0  # since the job finished and our part was written
    saves_alone: bool = False  # the last state is saved, or was to be, by this member alone
    collected_after: str = ""  # the newest checkpoint that this member has tidied up after
    stale_ticks: int = 0

    def copy(self) -> Machine:
        twin = object.__new__(Machine)
        twin.__dict__.update(self.__dict__)
        return twin

    @property
    def generation(self) -> int:
        """The generation it is in; 0 outside."""
        return self.world.number if self.world else 0
