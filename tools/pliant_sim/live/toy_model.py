"""A training state in integers.

The weights after a step depend on the weights before it and on the slots in each rank's sum, like floating-point sums.
Two members have the same numbers only if they took part in exactly the same reductions.
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
class ToyModel:
    """A training state: weights, forward-updated buffers, how often the user's post-step code ran.

    `spoilt` is invisible to processes: a corrupted state is behind these numbers.
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
        """Return the hash for the control words: of the whole state every `verify` steps, else a cheap one."""
        if verify < 2 or self.lineage.step % verify == 0:
            return self.hash
        return hash((self.lineage.step, self.post)) & _MASK


def applied(model: ToyModel, lineage: Lineage, content: Content) -> ToyModel:
    """Apply the optimizer's step. Buffers were staged by the forward passes and change here (rule 14)."""
    return ToyModel(
        lineage=lineage,
        weights=hash((model.weights, content)) & _MASK,
        buffers=hash((model.buffers, lineage.step)) & _MASK,
        post=model.post,
        spoilt=model.spoilt or any(max(part, default=0) >= WRONG for part in content),
    )


def corrupted(model: ToyModel, bit: int) -> ToyModel:
    """Flip one bit of the weights."""
    return replace(model, weights=model.weights ^ 1 << bit, spoilt=True)


def slots_in(part: tuple[int, ...]) -> list[int]:
    """The slots whose gradients are in a sum, wrong ones too."""
    return sorted(gradient % WRONG for gradient in part)


def post_step(model: ToyModel) -> ToyModel:
    """Run the user's code after the step, a scheduler for instance."""
    return replace(model, post=model.post + 1)


def forward(model: ToyModel) -> ToyModel:
    """Return the state unchanged: a forward pass stages its changes until the step is applied."""
    return model
