"""Pair averaging in a simulated task queue. A model is the set of the records that it was trained on.

An average of two models has the effect of both. Partners are rare, so that the saved means must carry the effects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pliant.core.tasks.model import ModelPeers
from pliant.core.tasks.pairs import CopyFacts, SavePace, partner_of, savable, saves

if TYPE_CHECKING:
    from pliant_sim.tasks.worker import TaskWorker

Model = frozenset[tuple[int, int]]

SAVE_EVERY_S = 1.0
TICK_S = 0.2
PARTNER_CHANCE = 0.03  # of a step


class SimulatedPairs:
    """The model of a worker, its published copy, and the thread that loads and saves means."""

    def __init__(self, worker: TaskWorker) -> None:
        self.worker, self.sim = worker, worker.sim
        self.published: tuple[int, Model] | None = None  # its base, and the model
        self.peers: ModelPeers | None = None
        self._loaded: tuple[int, Model] | None = None  # a mean that it did not average with yet
        self._wanted = 0  # the number of the mean that is being loaded
        self._pace = SavePace(SAVE_EVERY_S, self.sim.now)
        self._busy = False
        self._steps = 0
        self.sim.after(TICK_S, self._tick)

    def follow(self, peers: ModelPeers) -> None:
        self.peers = peers
        if peers.saves > self._wanted:
            self._wanted = peers.saves
            self.sim.after(self.sim.chance.choice([0.05, 0.3, 4.0]), self._load, peers.saves, peers.saved)

    def _load(self, number: int, name: str) -> None:
        if not self.worker.up:
            return
        if self.worker.paused:
            self.sim.after(0.5, self._load, number, name)
        elif self._loaded is None or self._loaded[0] < number:
            self._loaded = (number, self.sim.means[name])
            self.worker.changed()

    def boundary(self) -> bool:
        """Average with a loaded mean, between two batches. Return whether the worker has a model."""
        if self._loaded is not None:
            number, mean = self._loaded
            own = self.published[1] if self.published is not None else frozenset()
            self.published, self._loaded = (number, own | mean), None
        return self.published is not None

    def stepped(self, epoch: int, numbers: range) -> None:
        """Train on a batch, average, and publish."""
        self._steps += 1
        self.boundary()
        assert self.published is not None  # it takes no shard before
        base, model = self.published
        model |= {(epoch, number) for number in numbers}
        partner = partner_of(self.peers, self.worker.id, 1, self._steps) if self.peers is not None else None
        if partner is not None and self.sim.chance.random() < PARTNER_CHANCE:
            other = self.sim.workers.get(partner)
            if other and other.up and not other.paused and other.pairs and other.pairs.published:
                model |= other.pairs.published[1]
        self.published = (base, model)

    def _tick(self) -> None:
        """Save, as the thread beside the training does."""
        if not self.worker.up:
            return
        self.sim.after(TICK_S, self._tick)
        peers = self.peers
        if peers is None or self._busy or self.worker.paused or not saves(peers, self.worker.id):
            return
        if not peers.saves:
            self._busy = True
            self._write(peers, frozenset(), ())
        elif self._pace.due_in_s(self.sim.now, waits=self.worker.state.waits) <= 0.0:
            self._busy = True
            self._collect(peers, [], [*peers.members])

    def _collect(self, peers: ModelPeers, found: list[tuple[CopyFacts, Model]], left: list[str]) -> None:
        """Ask one member after the other for its copy."""
        if not self.worker.up:
            return
        while left:
            other = self.sim.workers.get(left.pop(0))  # type: ignore[call-overload]
            if other is not None and other.up and not other.paused and other.pairs and other.pairs.published:
                base, model = other.pairs.published
                found.append((CopyFacts(other.pairs._steps, base, other.state.unsaved), model))
                self.sim.after(self.sim.chance.uniform(0.01, 0.4), self._collect, peers, found, left)
                return
        chosen, attempts = savable(peers, [facts for facts, _ in found])
        if not attempts:
            self._pace.tried(self.sim.now, saved=False)
            self._busy = False
            return
        self._write(peers, frozenset().union(*[found[at][1] for at in chosen]), attempts)

    def _write(self, peers: ModelPeers, mean: Model, attempts: tuple[int, ...]) -> None:
        self.sim.after(self.sim.chance.uniform(0.05, 0.6), self._written, peers, mean, attempts)

    def _written(self, peers: ModelPeers, mean: Model, attempts: tuple[int, ...]) -> None:
        if not self.worker.up:
            return
        name = f"mean-{peers.saves + 1:08d}-{len(self.sim.means):08x}"
        self.sim.means[name] = mean
        self.worker.state.save(peers.saves + 1, name, attempts)
        self._pace.tried(self.sim.now, saved=True)
        self._busy = False
        self.worker.changed()
