"""What a member knows: the machine's state."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from pliant.core.data.ledger import GENESIS, Line, Lineage, add_digests
from pliant.core.member.control_words import CALM, marks
from pliant.core.member.signals import LetIn, NotWritten, Shares, Stripe, Written
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
class Part:
    """The local gradients kept apart from the reduction buffers (rule 14), and what was counted into them."""

    base: Lineage = GENESIS
    slots: frozenset[int] = frozenset()
    samples: int = 0
    marks: int = 0
    digest: int = 0

    def plus(self, slots: frozenset[int], samples: int, digest: int) -> Part:
        return Part(
            base=self.base,
            slots=self.slots | slots if self.slots else slots,
            samples=self.samples + samples,
            marks=add_digests(self.marks, marks(slots)),
            digest=add_digests(self.digest, digest),
        )


@dataclass(frozen=True, slots=True)
class Heard:
    """A step a member without state saw go by, with the hash of the state it was applied to (rule 15)."""

    line: Line
    state: int


@dataclass(frozen=True, slots=True)
class Saving:
    """This member's part of a checkpoint. It counts once the step is committed: then it is `ordered`."""

    lineage: Lineage
    name: str
    part: int
    count: int
    ordered: bool = False


@dataclass
class Machine:
    """One member's state. `react` copies it before it changes anything, so a value once given out stays as it is.

    No slots: a dictionary is copied ten times faster than forty attributes one by one.
    """

    id: MemberId
    terms: Terms
    saves: bool = True  # whether it has a place to write checkpoints to
    phase: Phase = Phase.OUTSIDE
    view: View | None = None

    # The world it is in.
    world: World | None = None
    rank: int = -1
    came_from: World | None = None  # the world it switched from, until a collective here completed (rule 9)
    greeted: bool = False  # a collective completed in this world
    in_flight: bool = False  # an operation of this world's group has not returned
    stopping: str = ""  # why it must stop at the next safe moment
    peer: MemberId | None = None  # whom the failed collective named
    diverged: bool = False  # members of this world hold different states of one history
    suspects: tuple[MemberId, ...] = ()  # those of them whose state is not the majority's
    disputes: tuple[Dispute, ...] = ()  # slots on which members of this world got other gradients
    stateless: bool = False  # the comparison found nobody to go on from
    holders: frozenset[int] = frozenset()  # ranks that hold the state, by the latest words
    going: frozenset[int] = frozenset()  # ranks that drain, by the latest words
    unable: frozenset[int] = frozenset()  # ranks that cannot save, by the latest words
    next: int = 0  # the generation the words said to enter at the boundary
    closing: bool = False  # the words said that everybody must go now

    # Its state and its place in the history.
    lineage: Lineage = GENESIS
    holds: bool = False
    state: int = 0
    line: Line | None = None  # applied, not committed
    lines: tuple[Line, ...] = ()  # committed, not durable
    part: Part = field(default_factory=Part)
    todo: frozenset[int] = frozenset()  # slots the user's code still has to compute
    dealt: Shares = ()  # who brings which slots, as the comparison dealt them out, for the step in flight only
    shares: Shares = ()  # who brings which slots into the step under way
    behind: Lineage | None = None  # the winner this member has to catch up with
    again: bool = False  # somebody held nothing when everybody compared: once all hold, they compare again
    donors: tuple[MemberId, ...] = ()  # who was at the winner's lineage when everybody compared

    # Wiring of worlds to come.
    wiring: int = 0
    wired: tuple[World, ...] = ()
    unwirable: int = 0  # the highest generation whose wiring failed
    failed_peer: MemberId | None = None
    let_in: LetIn | None = None

    # Receiving a state.
    fetching: bool = False
    quiet_ticks: int = 0
    stripes: tuple[Stripe, ...] = ()
    aside: Stripe | None = None
    heard: tuple[Heard, ...] = ()
    at: Lineage = GENESIS  # without a state: where the others are

    # Going.
    drains: int = CALM
    released: int = 0

    # Checkpoints and reports.
    saving: Saving | None = None  # a part of a checkpoint, until it is written
    manifest: Written | None = None  # written, and the coordinator may not know yet
    failed: NotWritten | None = None  # not written, and the coordinator may not know yet
    given_up: frozenset[str] = frozenset()  # checkpoints that will never be whole, as far as the coordinator remembers
    asked: bool = False  # the words said that a checkpoint is wanted
    end_ticks: int = 0  # since the job finished and our part was written
    alone: bool = False  # the last state is saved, or was to be, by this member alone
    tidied: str = ""  # the newest checkpoint that this member has tidied up after
    stale_ticks: int = 0

    def copy(self) -> Machine:
        twin = object.__new__(Machine)
        twin.__dict__.update(self.__dict__)
        return twin

    @property
    def number(self) -> int:
        """The generation it is in; 0 outside."""
        return self.world.number if self.world else 0
