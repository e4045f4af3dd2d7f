"""The shape of a fault's effect."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeVar

from pliant_sim.engine import Timeline

S = TypeVar("S", bound=Timeline)
Act = Callable[[S, Random], bool]  # whether there was something to strike; the generator makes the choices
