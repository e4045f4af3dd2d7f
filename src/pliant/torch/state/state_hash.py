"""What of a member's state is hashed when, so that members that differ are found (`verify=`).

Every word carries a hash of the rates, which user code most often gets wrong. With `verify=N` it is a hash of the whole
state every N steps. With `verify=1` it is taken after backward and not at the boundary: then a bit that flips while a
gradient is computed shows in the words of that very step, and nothing of it is applied.
"""

from __future__ import annotations

from collections.abc import Callable

from pliant.torch.state.training_state import StateOutline, TrainingState


class StateHash:
    """One member's hashes. Every member's must be taken by the same rule, so nothing here depends on the world.

    Small values, such as rates, are those of the boundary: user code may set them for the step under way, and then they
    depend on how far a member got in it.
    """

    def __init__(self, state: TrainingState, every: int) -> None:
        self._state = state
        self._every = every
        self._noted: StateOutline | None = None

    def at_boundary(self, step: int) -> int:
        """What members say of the state after this step. Call it at every boundary."""
        self._noted = self._state.outline() if self._every else None
        return self.whole() if self._every > 1 and step % self._every == 0 else self._state.fingerprint()

    def whole(self) -> int:
        """The hash of the whole state, with its tensors as they are now."""
        return (self._noted or self._state.outline()).hash()

    def after_backward(self) -> int | None:
        """What they say in the step after it instead; None: the same."""
        return self.whole() if self._every == 1 else None

    def label(self, at_boundary: int) -> int | Callable[[], int]:
        """What a donor says of the state: that which the words of the step after it say, taken when it is asked for."""
        return self.whole if self._every == 1 else at_boundary
