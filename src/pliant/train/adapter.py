"""What the session asks of a process group, whichever framework it comes from (rules 7-10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pliant.core.model.world import World


class CollectiveGroup(Protocol):
    """One generation's group, from its wiring to its end."""

    def break_off(self) -> None:
        """Every operation of it returns with an error, here and on the peers. From any thread, any number of times."""

    def dispose(self) -> None:
        """Let go of it, off the critical path."""


class GroupWiring(Protocol):
    """The building of one group."""

    def run(self) -> CollectiveGroup:
        """Build it and complete a barrier in it; raises when it cannot be, or was broken off."""

    def break_off(self) -> None:
        """Make `run` return with an error. From any thread."""


StartWiring = Callable[[World, str], GroupWiring]
"""Called with the world and its key; the key is empty for a world of one."""
