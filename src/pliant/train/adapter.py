"""The interface of a process group that an adapter provides to the session (rules 7-10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pliant.core.model.world import World


class CollectiveGroup(Protocol):
    """The process group of one generation."""

    def break_off(self) -> None:
        """Make every operation of the group return with an error, here and on the peers.

        Thread-safe, may be repeated.
        """

    def dispose(self) -> None:
        """Release the group's resources, off the critical path."""


class GroupWiring(Protocol):
    """The construction of one group."""

    def run(self) -> CollectiveGroup:
        """Build the group and complete a barrier in it. Raises if that fails or was broken off."""

    def break_off(self) -> None:
        """Make `run` return with an error. Thread-safe."""


StartWiring = Callable[[World, str], GroupWiring]
"""Takes the world and its key. The key is empty for a world of one."""
