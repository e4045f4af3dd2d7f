"""What toy workers do together: so many steps, saved after each, and nothing while one of them is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pliant_sim.launch.world import Launches
    from pliant_sim.processes.hosts import Toy

STEP_S = 1.0


class Trainer:
    """The script that all workers run. `steps` are in its own checkpoint."""

    def __init__(self, universe: Launches, total: int) -> None:
        self._universe = universe
        self.total = total
        self.steps = 0
        self.done: set[str] = set()  # members that ended well by themselves
        self._crews: dict[int, dict[int, Toy]] = {}  # by generation and rank
        self._ticking: set[int] = set()

    def afresh(self) -> None:
        """Its checkpoint is gone."""
        self.steps = 0

    def came(self, toy: Toy) -> None:
        if not toy.generation:
            return
        self._crews.setdefault(toy.generation, {})[toy.rank] = toy
        if toy.generation not in self._ticking:
            self._ticking.add(toy.generation)
            self._universe.after(STEP_S, self._step, toy.generation)

    def crew(self, generation: int) -> list[Toy]:
        return [toy for toy in self._crews.get(generation, {}).values() if toy.up]

    def _step(self, generation: int) -> None:
        crew = self.crew(generation)
        size = self._universe.checks.sizes.get(generation, 0)
        if not crew:
            self._ticking.discard(generation)
            return
        self._universe.after(STEP_S, self._step, generation)
        here = {toy.rank for toy in self._crews[generation].values() if toy.up or toy.id in self.done}
        if len(here) < size or self._universe.joining:
            return  # they wait for one another, or another kind of training goes on
        if self.steps < self.total:
            self.steps += 1
            return
        for toy in crew:
            self._universe.after(self._universe.chance.uniform(0.0, 0.9), self._ends_well, toy)

    def _ends_well(self, toy: Toy) -> None:
        if toy.up and toy.id not in toy.host.state.stopping:
            self.done.add(toy.id)
            toy.host.end(toy, 0)

    def went(self, toy: Toy) -> None:
        """Of the others some see that a connection was reset, and some wait for ever."""
        if toy.id in self.done or self._universe.refills(toy):
            return
        for other in self.crew(toy.generation):
            if other is not toy and not other.joined and self._universe.chance.random() < 0.4:
                self._universe.after(self._universe.chance.uniform(0.01, 1.5), self._reset, other)

    def _reset(self, toy: Toy) -> None:
        if toy.up and not toy.joined:
            toy.host.end(toy, 1)
