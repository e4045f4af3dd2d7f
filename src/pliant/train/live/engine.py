"""The interfaces between the training loop and a framework.

The loop decides when a part begins, when the members reduce and when a step is applied. An engine does the arithmetic
in between: it holds the model, the gradients of the current step and the buffers that a forward pass changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pliant.core.data.grid import Grid
from pliant.core.member.signals import Shares
from pliant.core.model.view import View
from pliant.train.data.loader import LoadedMicroBatch, MicroBatch
from pliant.train.group.contract import CollectiveGroup
from pliant.train.reduce.control_row import ControlRow
from pliant.train.reduce.spot_checks import SpotCheck
from pliant.train.state.flat import State
from pliant.train.state.shared_copy import SharedMemory
from pliant.train.state.transfer import ReceivedState
from pliant.wire.views import PeerKey

Rows = npt.NDArray[np.float32]
RowGradients = Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]]


class StepGroup(CollectiveGroup, Protocol):
    """The process group of one generation, as far as the loop uses it itself."""

    def gather(self, data: bytes) -> list[bytes]:
        """Return the bytes of every rank, in order of rank. They may differ in length. Waits for all of them."""


class StepGradient(Protocol):
    """A step's global gradient, before it is divided by its weight."""

    weight: float
    means: tuple[float, ...]  # of the logged values, in the order of their names
    disputed: tuple[SpotCheck, ...]  # spot checks whose two gradients differ

    @property
    def is_shared(self) -> bool:
        """True if it stays in memory for a member that missed the step. A world of one keeps none."""


class StepReducer(Protocol):
    """The gradients of one run. The training thread makes all calls."""

    @property
    def weight(self) -> float:
        """The weight of the current part."""

    @property
    def has_sent(self) -> bool:
        """True if a share of the current step's gradients was sent before `reduce`."""

    def begin_part(self, part: MicroBatch, factor: float, group: Any, shares: Shares, *, idle: bool) -> None:
        """Prepare for a part. With a group it is this member's last part of the step."""

    def prepare(self, size: int) -> None:
        """Allocate what the first reduction in a world of that size needs, so that no member waits for it then."""

    def weigh(self, factor: float) -> None:
        """Set the weight of this part, if it is not the number of its samples."""

    def end_part(self) -> None:
        """Add a part's gradients to the kept ones."""

    def drop_part(self) -> None:
        """Drop the gradients of a part without weight (rule 22)."""

    def keep_spot_hash(self, slot: int) -> None:
        """End a spot check of a slot: keep a hash of its gradients and nothing else."""

    def drop_kept(self) -> None:
        """Drop the kept gradients: the step was applied, or the state was replaced."""

    def reduce(
        self, group: Any, row: ControlRow, shares: Shares, checks: Sequence[SpotCheck] = (), *, follow: bool = False
    ) -> tuple[tuple[ControlRow, ...], Any]:
        """Sum over the members. Raises GroupBroken once no operation uses the memory.

        A member with `follow` contributes nothing (rule 15). `checks` are the same on every rank.
        """

    def abandon(self) -> None:
        """Wait until all operations have returned or failed. Only then may the memory be used (rule 9)."""

    def swap_buffers(self) -> None:
        """Switch to the other set of memory after a step, whose sums stay until the next step but one."""

    def write_gradients(self, reduced: Any) -> None:
        """Offer the global gradient to user code, before it is applied."""

    def set_grid(self, grid: Grid) -> None:
        """Reduce the steps of a grid whose batch has changed."""

    def close(self) -> None:
        """Release what the reducer holds of the framework."""


class PartBuffers(Protocol):
    """Values that a forward pass changes, such as BatchNorm's statistics (rule 14)."""

    def rebase(self) -> None:
        """Make the current values the base of the next parts. Call it at a boundary."""

    def end_part(self, weight: float, *, drop: bool) -> None:
        """Record what a part changed, and undo it. The changes of an idle part are dropped (rule 22)."""

    def drop_staged(self) -> None:
        """Drop the recorded changes."""


class Outline(Protocol):
    """A state's small values and its live arrays, to hash now or later."""

    def hash(self) -> int:
        """Return a hash of every bit of the state."""


class LiveState(Protocol):
    """The whole state of a run: captured for a donor or a checkpoint, hashed, and installed."""

    def capture(self) -> State:
        """Return the state of the last boundary, in live memory. Any thread may call it until the next apply."""

    def layout(self) -> tuple[bytes, Sequence[Any]]:
        """Return the state's tree and its live arrays, in the order of the tree, without copying."""

    def content(self, array: Any) -> memoryview:
        """Return the bytes of an array: live ones, or a copy if the array is not in host memory."""

    def shared_memory(self) -> SharedMemory | None:
        """Return the memory that processes of this machine share copies in; None if sockets are as good."""

    def contents(self, arrays: Sequence[Any]) -> tuple[list[Callable[[], memoryview]], bool]:
        """Return functions that fetch the bytes of arrays, and whether these bytes stay as they are now."""

    def copy(self, content: memoryview) -> memoryview:
        """Copy bytes that are about to change, as fast as the framework can."""

    def outline(self) -> Outline:
        """Return an outline to hash now or later: the current small values, and the live arrays."""

    def install(self, received: ReceivedState) -> None:
        """Install a received state, which was verified before."""

    def fingerprint(self) -> int:
        """Return a hash of the rates, which user code most often changes by mistake on one member alone."""

    def choose_hyperparameters(self, *, from_script: bool) -> list[str]:
        """Use the script's hyperparameters or those just installed, and describe where they differ."""


class Engine(Protocol):
    """A framework's part in a member's life. The training thread makes all calls but `gradient_state`."""

    @property
    def state(self) -> LiveState: ...
    @property
    def buffers(self) -> PartBuffers: ...
    @property
    def reducer(self) -> StepReducer: ...

    def seed(self, key: int) -> None:
        """Seed the generators that user code draws from."""

    def can_step(self, step: int) -> bool:
        """Return whether to apply the global gradient. Raises NonFiniteGradient if the run must stop instead.

        It may return True before it knows. Then `apply` changes nothing if the gradient must not be applied.
        """

    def settle(self) -> None:
        """Wait for what `can_step` did not wait for, and raise like it. Called before the boundary after a step."""

    def part_square(self) -> float:
        """Return the square of the norm of the current part's gradient."""

    def whole_square(self, reduced: Any) -> float:
        """Return the square of the norm of the global gradient, once it was offered to user code."""

    def apply(self, reduced: Any, *, skip: bool) -> None:
        """Apply the global gradient to the state, unless the step is skipped."""

    def follow(self, received: ReceivedState) -> None:
        """Adopt from a received state what this member needs to enter the others' reductions."""

    def gradient_state(self, reduced: Any) -> State:
        """Return a step's reduced gradient as a state, to send to a member that missed the step (rule 13)."""

    def gradient_from(self, received: ReceivedState) -> Any:
        """Return the reduced gradient that another member sent."""


class StepTables(Protocol):
    """Rows on parameter servers, beside the state. The training thread makes all calls but `view_received`."""

    @property
    def terms(self) -> tuple[tuple[str, str], ...]:
        """The terms that members must share, as name and value."""

    def view_received(self, view: View, keys: Sequence[PeerKey]) -> None:
        """Follow the servers of the job. Another thread calls it."""

    def pull(self, table: str, ids: npt.ArrayLike, step: int, *, idle: bool) -> Rows:
        """Return the values of rows before a step. An idle item gets initial ones: its gradients are dropped."""

    def push(self, gradients: RowGradients) -> None:
        """Keep gradients of rows until the item ends. Raises BadInput if they cannot be used."""

    def end_part(self, step: int, slot: int, share: float) -> None:
        """Send the kept gradients, multiplied by the slot's share of the step; return once the servers have them."""

    def drop_part(self) -> None:
        """Drop the kept gradients."""

    def end(self, step: int) -> None:
        """Let the servers apply the gradients of all steps before this one."""

    def close(self) -> None: ...


class PartLoader(Protocol):
    """The reader of a run's parts."""

    @property
    def reads_ahead(self) -> int:
        """The number of parts that `expect` can read ahead; 0 without data workers."""

    def expect(self, parts: Sequence[MicroBatch]) -> None:
        """Set the parts that will be loaded next, in order. Call it at every boundary and after every change."""

    def load(self, part: MicroBatch) -> LoadedMicroBatch:
        """Return a part with its batch, expected or not. Raises SampleError if it cannot be read."""

    def start(self) -> None: ...
    def close(self) -> None: ...
