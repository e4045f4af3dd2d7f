"""A model of training: what the real shell does with weights, in integers.

The weights after a step depend on the weights before it and on who summed which slots, as floating-point sums do. So
two members that took part in the same reductions, and in nothing else, have the same numbers; anything else shows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pliant.core.data.ledger import GENESIS, Lineage

Content = tuple[tuple[int, ...], ...]  # which slots' gradients each rank's sum held, by rank

_MASK = (1 << 63) - 1
INITIAL = 0x5EED
WRONG = 1 << 20  # added to a slot whose gradient was computed from a corrupted state
FALSE = 1 << 21  # added to a slot whose gradient was computed wrongly


@dataclass(frozen=True, slots=True)
class Model:
    """A training state: weights, forward-updated buffers, how often the user's post-step code ran.

    `spoilt` is what no process can see: that a corrupted state is behind these numbers.
    """

    lineage: Lineage = GENESIS
    weights: int = INITIAL
    buffers: int = INITIAL
    post: int = 0
    spoilt: bool = False

    @property
    def hash(self) -> int:
        return hash((self.weights, self.buffers, self.post)) & _MASK

    def said(self, verify: int) -> int:
        """The hash that rides in the words: of the whole every so many steps, else of what costs little."""
        if verify < 2 or self.lineage.step % verify == 0:
            return self.hash
        return hash((self.lineage.step, self.post)) & _MASK


def applied(model: Model, lineage: Lineage, content: Content) -> Model:
    """The optimizer's step. Buffers were staged by the forward passes and change here (rule 14)."""
    return Model(
        lineage=lineage,
        weights=hash((model.weights, content)) & _MASK,
        buffers=hash((model.buffers, lineage.step)) & _MASK,
        post=model.post,
        spoilt=model.spoilt or any(max(part, default=0) >= WRONG for part in content),
    )


def corrupted(model: Model, bit: int) -> Model:
    """One bit of the weights is another one, and nobody is told."""
    return replace(model, weights=model.weights ^ 1 << bit, spoilt=True)


def slots_in(part: tuple[int, ...]) -> list[int]:
    """The slots whose gradients are in a sum, wrong ones too."""
    return sorted(gradient % WRONG for gradient in part)


def post_step(model: Model) -> Model:
    """The user's own code after the step: a scheduler, say."""
    return replace(model, post=model.post + 1)


def forward(model: Model) -> Model:
    """A forward pass leaves the state as it is: what it would change is staged until the step is applied."""
    return model
