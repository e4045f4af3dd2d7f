"""Everything that goes into a member's machine, and everything that comes out of it.

Signals are facts of the shell: something returned, arrived, or ran out. Actions are orders to the shell. An order
that takes time is answered by a signal; until then the machine waits for it."""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.data.ledger import LedgerLine, Lineage
from pliant.core.member.control_words import Word, Words
from pliant.core.messages import Command
from pliant.core.model.checkpoint import Checkpoint
from pliant.core.model.job import Dispute
from pliant.core.model.names import MemberId
from pliant.core.model.view import View
from pliant.core.model.world import World

Shares = tuple[tuple[int, ...], ...]  # by rank, the slots it brings into a reduction, ascending


@dataclass(frozen=True, slots=True)
class ViewReceived:
    """The coordinator's view of the job arrived; older ones than the last are ignored."""

    view: View


@dataclass(frozen=True, slots=True)
class Durable:
    """The coordinator keeps the history up to `lineage`, as of `revision`; told with answers, between two views."""

    revision: int
    lineage: Lineage


@dataclass(frozen=True, slots=True)
class Tick:
    """A third of a lease has passed. Whatever may have been lost on the way is said again."""


@dataclass(frozen=True, slots=True)
class Wired:
    """The group of a generation is built and a barrier in it completed (rule 7)."""

    generation: int


@dataclass(frozen=True, slots=True)
class WireFailed:
    """The group could not be built; `peer` is whom we could not reach, if that is known."""

    generation: int
    peer: MemberId | None


@dataclass(frozen=True, slots=True)
class Computed:
    """Gradients of these slots were added to the kept part; none for an idle slot (rule 22).

    `state` is the hash of the state they were computed from, taken after the last of them; None: as at the boundary.
    """

    slots: frozenset[int]
    samples: int
    digest: int
    state: int | None = None


@dataclass(frozen=True, slots=True)
class Returned:
    """A collective completed, with everybody's words by rank.

    `disputes` are slots of a step that two members computed, with other gradients; the same on every member. With any
    nothing is applied.
    """

    generation: int
    words: Words
    disputes: tuple[Dispute, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """A collective returned an error. Its buffers are ours again (rule 9)."""

    generation: int
    peer: MemberId | None


@dataclass(frozen=True, slots=True)
class Boundary:
    """The iterator was asked for the next part, after the user's post-step code (rule 3)."""

    state: int  # hash of the whole state, as the control words carry it


@dataclass(frozen=True, slots=True)
class Restored:
    """The state of a rollback world's base is in place."""

    state: int


@dataclass(frozen=True, slots=True)
class RestoreFailed:
    """The base of a rollback world could not be loaded: what was written is damaged, or it is out of reach."""

    why: str
    damaged: bool


@dataclass(frozen=True, slots=True)
class Gradient:
    """The winner's last reduced gradient arrived; None: it has none to give (rule 13)."""

    line: LedgerLine | None


@dataclass(frozen=True, slots=True)
class Stripe:
    """One stripe of a donor's state, labelled with what it is a stripe of (rule 15).

    `lines` are the donor's ledger lines that were not durable yet, the one of `lineage` itself included.
    """

    index: int
    count: int
    lineage: Lineage
    state: int
    lines: tuple[LedgerLine, ...]


@dataclass(frozen=True, slots=True)
class TransferBroken:
    """A donor could not go on: of the transfer under way nothing can be used.

    `spoilt` says that all arrived, and has not the hash that it was labelled with, or not one hash everywhere.
    """

    wrong_state: bool = False


@dataclass(frozen=True, slots=True)
class Installed:
    """What was received aside is now the state, with the steps since then replayed on it."""

    state: int


@dataclass(frozen=True, slots=True)
class Admission:
    """A member of a planned world tells a joiner that the world was entered."""

    generation: int
    lineage: Lineage
    donors: tuple[MemberId, ...]


@dataclass(frozen=True, slots=True)
class Released:
    """A member of the next world tells a leaver that a collective completed there (rule 9)."""

    generation: int


@dataclass(frozen=True, slots=True)
class DrainNotice:
    """This worker is to go: SIGTERM, or a spot notice."""

    grace_s: float
    why: str


@dataclass(frozen=True, slots=True)
class GraceShort:
    """Hardly any of the grace period is left: the next boundary must be the last."""


@dataclass(frozen=True, slots=True)
class GraceOver:
    """The grace period is over."""


@dataclass(frozen=True, slots=True)
class UserCodeRaised:
    """User code raised while it computed these slots, and nobody knows on which (rule 20).

    `samples` are those of each slot, by its place.
    """

    step: int
    slots: tuple[int, ...]
    samples: tuple[tuple[int, ...], ...]
    error: str


@dataclass(frozen=True, slots=True)
class WriteDone:
    """This member's part of a checkpoint is complete, and under its name."""

    checkpoint: Checkpoint  # with the pieces of this part alone
    part: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """This member's part of a checkpoint will never be complete. `apart`: others' parts are not where this one is."""

    name: str
    why: str
    split_storage: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Begin to write this member's part of the state as it is at this boundary. Answer: `WriteFailed` if that fails."""

    lineage: Lineage
    name: str
    part: int
    count: int
    waits: bool = False  # for the part that is still being written: nothing is trained meanwhile


@dataclass(frozen=True, slots=True)
class Save:
    """What was begun under that name is wanted: its step is committed. Answer: `WriteDone` or `WriteFailed`."""

    name: str


@dataclass(frozen=True, slots=True)
class CollectGarbage:
    """The newest checkpoint is another one: put its manifest beside its files, and remove what nobody can need."""

    newest: Checkpoint
    members: tuple[MemberId, ...]  # of the world that it was published in
    kept_checkpoints: tuple[str, ...]
    history_from_generation: int  # as `saving.is_garbage` wants them
    rollback_generation: int
    generation: int


@dataclass(frozen=True, slots=True)
class Discard:
    """That checkpoint will never be whole: write no more of it, and remove what is there."""

    name: str


Signal = (
    ViewReceived
    | Durable
    | Tick
    | Wired
    | WireFailed
    | Computed
    | Returned
    | Failed
    | Boundary
    | Restored
    | RestoreFailed
    | Gradient
    | Stripe
    | TransferBroken
    | Installed
    | Admission
    | Released
    | DrainNotice
    | GraceShort
    | GraceOver
    | WriteDone
    | WriteFailed
    | UserCodeRaised
)


@dataclass(frozen=True, slots=True)
class Wire:
    """Build that world's group in the background. Answer: `Wired` or `WireFailed`."""

    world: World


@dataclass(frozen=True, slots=True)
class Break:
    """Break that generation's group or wiring, so that an operation in it returns (rule 10)."""

    generation: int


@dataclass(frozen=True, slots=True)
class Compute:
    """Yield these slots to the user's code; an idle one is computed and dropped. Answer: `Computed`, maybe in parts."""

    step: int
    slots: tuple[int, ...]
    idle: bool


@dataclass(frozen=True, slots=True)
class Collect:
    """Enter a collective of that world with this word. Answer: `Returned` or `Failed`.

    `shares` says for a step, by rank, whose gradients of which slots come into this reduction, the same on every member
    (rule 23); it is empty for the others. With `whole` the shell takes a hash of the whole state first, and enters with
    that in the word.
    """

    world: World
    word: Word
    shares: Shares = ()
    whole_state_hash: bool = False


@dataclass(frozen=True, slots=True)
class Apply:
    """Step the optimizer with the reduced gradient and let the user's post-step code run. Answer: `Boundary`."""

    line: LedgerLine


@dataclass(frozen=True, slots=True)
class Restore:
    """Load the checkpoint (None: the initial state). Answer: `Restored` or `RestoreFailed`."""

    checkpoint: Checkpoint | None


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Get that member's reduced gradient of that lineage. Answer: `Gradient` or `TransferBroken`."""

    donor: MemberId
    lineage: Lineage


@dataclass(frozen=True, slots=True)
class Fetch:
    """Receive the state aside, in stripes from these donors. Answer: `Stripe`s or `TransferBroken`."""

    generation: int
    donors: tuple[MemberId, ...]


@dataclass(frozen=True, slots=True)
class Install:
    """Make the state received aside ours, then replay these steps with their small state. Answer: `Installed`."""

    lineage: Lineage
    replay: tuple[LedgerLine, ...]


@dataclass(frozen=True, slots=True)
class SendToPeer:
    """Send a signal to a peer, member to member."""

    member: MemberId
    signal: Admission | Released


@dataclass(frozen=True, slots=True)
class Send:
    """Send a command to the coordinator."""

    command: Command


@dataclass(frozen=True, slots=True)
class StartGrace:
    """Start the clock of the grace period. Answers: `GraceShort` and, in the end, `GraceOver`."""

    grace_s: float


@dataclass(frozen=True, slots=True)
class Exit:
    """Leave the loop. `complete` is true only with the final state in place; code 75 says fenced."""

    code: int
    why: str
    complete: bool = False


Action = (
    Wire
    | Break
    | Compute
    | Collect
    | Apply
    | Restore
    | CatchUp
    | Fetch
    | Install
    | SendToPeer
    | Send
    | StartGrace
    | Snapshot
    | CollectGarbage
    | Discard
    | Save
    | Exit
)
