"""A model of training: what the real shell does with weights, in integers.

The weights after a step depend on the weights before it and on who summed which slots, as floating-point sums do. So
two members that took part in the same reductions, and in nothing else, have the same numbers; anything else shows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pliant.core.ledger import GENESIS, Lineage

Content = tuple[tuple[int, ...], ...]  # which slots each rank's sum held, by rank

_MASK = (1 << 63) - 1
INITIAL = 0x5EED


@dataclass(frozen=True, slots=True)
class Model:
    """A training state: weights, forward-updated buffers, how often the user's post-step code ran."""

    lineage: Lineage = GENESIS
    weights: int = INITIAL
    buffers: int = INITIAL
    post: int = 0

    @property
    def hash(self) -> int:
        return hash((self.weights, self.buffers, self.post)) & _MASK


def applied(model: Model, lineage: Lineage, content: Content) -> Model:
    """The optimizer's step. Buffers were staged by the forward passes and change here (rule 14)."""
    return Model(
        lineage=lineage,
        weights=hash((model.weights, content)) & _MASK,
        buffers=hash((model.buffers, lineage.step)) & _MASK,
        post=model.post,
    )


def post_step(model: Model) -> Model:
    """The user's own code after the step: a scheduler, say."""
    return replace(model, post=model.post + 1)


def forward(model: Model) -> Model:
    """A forward pass leaves the state as it is: what it would change is staged until the step is applied."""
    return model
