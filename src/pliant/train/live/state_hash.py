"""Hash a member's state, so that members that differ are found (`verify=`).

Every control word carries a hash of the learning rates, which user code most often gets wrong. With `verify=N` it is a
hash of the whole state every N steps. With `verify=1` the hash is taken after backward instead of at the boundary. Then
a bit that flips during backward shows in the words of the same step, and the step is not applied.
"""

from __future__ import annotations

from collections.abc import Callable

from pliant.train.live.engine import LiveState, Outline


class StateHash:
    """One member's hashes. All members must follow the same rule, so it does not depend on the world.

    Small values, such as rates, are those of the boundary. User code may change them during a step, at a time that
    differs between members.
    """

    def __init__(self, state: LiveState, every: int) -> None:
        self._state = state
        self._every = every
        self._outline: Outline | None = None

    def at_boundary(self, step: int) -> int:
        """Return the hash for the control words after this step. Call it at every boundary."""
        self._outline = self._state.outline() if self._every else None
        return self.whole() if self._every > 1 and step % self._every == 0 else self._state.fingerprint()

    def whole(self) -> int:
        """Return the hash of the whole state, with the current arrays."""
        return (self._outline or self._state.outline()).hash()

    def after_backward(self) -> int | None:
        """Return the hash that replaces it in the next step, or None to keep it."""
        return self.whole() if self._every == 1 else None

    def label(self, at_boundary: int) -> int | Callable[[], int]:
        """Return the hash that a donor sends with the state, or a function for it: the one in the next step's words."""
        return self.whole if self._every == 1 else at_boundary
