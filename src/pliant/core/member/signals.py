"""Signals into a member's machine, and actions out of it.

A signal is a fact from the shell: an operation returned, a message arrived, a time ran out. An action is an order to
the shell. An action that takes time is answered by a signal, for which the machine waits.
"""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.data.grid import Changes
from pliant.core.data.ledger import LedgerLine, Lineage
from pliant.core.member.control_words import Word, Words
from pliant.core.messages import Command
from pliant.core.model.checkpoint import Checkpoint
from pliant.core.model.job import Dispute
from pliant.core.model.names import MemberId
from pliant.core.model.view import View
from pliant.core.model.world import World

Shares = tuple[tuple[int, ...], ...]  # the slots of each rank in a reduction, ascending


@dataclass(frozen=True, slots=True)
class ViewReceived:
    """The coordinator's view of the job arrived. The machine ignores a view that is not newer than the last one."""

    view: View


@dataclass(frozen=True, slots=True)
class Durable:
    """The coordinator stored the history up to `lineage`, as of `revision`.

    It comes with replies, between two views.
    """

    revision: int
    lineage: Lineage


@dataclass(frozen=True, slots=True)
class Tick:
    """A third of a lease has passed. The machine repeats the messages that may have been lost."""


@dataclass(frozen=True, slots=True)
class Wired:
    """The group of a generation is built and a barrier in it completed (rule 7)."""

    generation: int


@dataclass(frozen=True, slots=True)
class WireFailed:
    """The group could not be built. `peer` is the member that could not be reached, if that is known."""

    generation: int
    peer: MemberId | None


@dataclass(frozen=True, slots=True)
class Computed:
    """Gradients of these slots were added to the kept ones; no slots for an idle slot (rule 22).

    `state` is the hash of the state they were computed from, taken after the last slot; None if it is the boundary's.
    `batch` is the batch that user code set for the coming steps; 0 if it set none.
    """

    slots: frozenset[int]
    samples: int
    digest: int
    state: int | None = None
    batch: int = 0


@dataclass(frozen=True, slots=True)
class LoopEnded:
    """User code computes nothing more: it finishes the job for the reason `why`, or just left its loop."""

    finish: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class Returned:
    """A collective completed, with the words of all ranks.

    `disputes` are slots of a step that two members computed with different results. They are the same on every member.
    If there are any, nothing is applied.
    """

    generation: int
    words: Words
    disputes: tuple[Dispute, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """A collective returned an error. Its buffers may be used again (rule 9)."""

    generation: int
    peer: MemberId | None


@dataclass(frozen=True, slots=True)
class Boundary:
    """The user's loop asked for the next micro-batch, after its post-step code (rule 3)."""

    state: int  # hash of the whole state, for the control words


@dataclass(frozen=True, slots=True)
class Restored:
    """The state of a rollback world's base is in place."""

    state: int


@dataclass(frozen=True, slots=True)
class RestoreFailed:
    """The base of a rollback world could not be loaded: its files are damaged, or cannot be reached."""

    why: str
    damaged: bool


@dataclass(frozen=True, slots=True)
class Gradient:
    """The winner's last reduced gradient arrived; None if it has none (rule 13)."""

    line: LedgerLine | None


@dataclass(frozen=True, slots=True)
class Stripe:
    """One stripe of a donor's state, with the label of that state (rule 15).

    `lines` are the donor's ledger lines that were not durable yet, including the line of `lineage` itself.
    """

    index: int
    count: int
    lineage: Lineage
    state: int
    lines: tuple[LedgerLine, ...]


@dataclass(frozen=True, slots=True)
class TransferBroken:
    """A transfer failed, and nothing of it can be used.

    With `wrong_state` all bytes arrived, but their hash differs from the label, or the donors' hashes differ. With
    `values_differ` their hashes are equal, and the values beside their arrays are not.
    """

    wrong_state: bool = False
    values_differ: bool = False


@dataclass(frozen=True, slots=True)
class Installed:
    """The received state is installed, and the steps since then are replayed on it."""

    state: int


@dataclass(frozen=True, slots=True)
class Admission:
    """A member of a planned world informs a joiner that the world was entered, with the batches of its history."""

    generation: int
    lineage: Lineage
    donors: tuple[MemberId, ...]
    changes: Changes = ()


@dataclass(frozen=True, slots=True)
class Released:
    """A member of the next world informs a leaver that a collective completed there (rule 9)."""

    generation: int


@dataclass(frozen=True, slots=True)
class DrainNotice:
    """This worker has to leave, because of SIGTERM or a spot notice."""

    grace_s: float
    why: str


@dataclass(frozen=True, slots=True)
class GraceShort:
    """The grace period is nearly over: the next boundary must be the last."""


@dataclass(frozen=True, slots=True)
class GraceOver:
    """The grace period is over."""


@dataclass(frozen=True, slots=True)
class UserCodeRaised:
    """User code raised while it computed these slots; the failing slot is unknown (rule 20).

    `samples` holds the samples of each slot, in the order of `slots`.
    """

    step: int
    slots: tuple[int, ...]
    samples: tuple[tuple[int, ...], ...]
    error: str


@dataclass(frozen=True, slots=True)
class WriteDone:
    """This member's part of a checkpoint is complete and has its final name."""

    checkpoint: Checkpoint  # it lists the pieces of this part only
    part: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """This member's part of a checkpoint will never be complete.

    With `split_storage` the others' parts are in other storage.
    """

    name: str
    why: str
    split_storage: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Start to write this member's part of the state at this boundary. Answer: `WriteFailed` if that fails."""

    lineage: Lineage
    name: str
    part: int
    count: int
    waits: bool = False  # for the previous part to be written, because nothing is trained meanwhile


@dataclass(frozen=True, slots=True)
class Save:
    """Finish the part begun under that name: its step is committed. Answer: `WriteDone` or `WriteFailed`."""

    name: str


@dataclass(frozen=True, slots=True)
class CollectGarbage:
    """Write the manifest of the new newest checkpoint beside its files, and remove checkpoints no longer needed."""

    newest: Checkpoint
    members: tuple[MemberId, ...]  # of the world in which it was published
    kept_checkpoints: tuple[str, ...]
    history_from_generation: int  # for `job.checkpoints.is_garbage`, as are the next two
    rollback_generation: int
    generation: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Stop writing a checkpoint that will never be complete, and remove its files."""

    name: str


Signal = (
    ViewReceived
    | Durable
    | Tick
    | Wired
    | WireFailed
    | Computed
    | LoopEnded
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
    """Yield these slots to the user's code.

    An idle slot is computed and dropped. Answer: `Computed`, once or several times.
    """

    step: int
    slots: tuple[int, ...]
    idle: bool


@dataclass(frozen=True, slots=True)
class Collect:
    """Enter a collective of that world with this word. Answer: `Returned` or `Failed`.

    `shares` lists for a step the slots of each rank in this reduction, the same on every member (rule 23). It is empty
    for other purposes. With `whole_state_hash` the shell first hashes the whole state and enters with that hash in the
    word.
    """

    world: World
    word: Word
    shares: Shares = ()
    whole_state_hash: bool = False


@dataclass(frozen=True, slots=True)
class Apply:
    """Step the optimizer with the reduced gradient and run the user's post-step code. Answer: `Boundary`."""

    line: LedgerLine


@dataclass(frozen=True, slots=True)
class Restore:
    """Load the checkpoint (None: the initial state). Answer: `Restored` or `RestoreFailed`."""

    checkpoint: Checkpoint | None


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Fetch that member's reduced gradient of that lineage. Answer: `Gradient` or `TransferBroken`."""

    donor: MemberId
    lineage: Lineage


@dataclass(frozen=True, slots=True)
class Fetch:
    """Receive the state in stripes from these donors. Answer: `Stripe`s or `TransferBroken`."""

    generation: int
    donors: tuple[MemberId, ...]


@dataclass(frozen=True, slots=True)
class Install:
    """Install the received state, then replay these steps. Answer: `Installed`."""

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
    """Start the clock of the grace period. Answers: `GraceShort`, then `GraceOver`."""

    grace_s: float


@dataclass(frozen=True, slots=True)
class Exit:
    """Leave the loop. `complete` is true only with the final state in place. Code 75 means fenced."""

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
