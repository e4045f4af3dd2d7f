"""A rule for the batch of the coming steps, from the gradient noise scale."""

from __future__ import annotations

from pliant.errors import BadInput


def batch_by_noise(noise_scale: float | None, batch: int, *, smallest: int, largest: int) -> int:
    """Return the batch for the coming steps: twice the current one, half of it, or the same.

    It doubles when the noise scale is at least twice the batch, and halves when it is below half of the batch. Between
    the two it stays, so that a noisy measurement does not change it to and fro. It stays within the limits, and it
    stays as it is while nothing was measured.
    """
    if not 1 <= smallest <= largest:
        raise BadInput(f"The limits must satisfy 1 <= smallest <= largest, got {smallest} and {largest}.")
    if batch < 1:
        raise BadInput(f"The batch must be at least 1, got {batch}.")
    if noise_scale is not None and noise_scale >= 2 * batch:
        batch *= 2
    elif noise_scale is not None and noise_scale < batch / 2:
        batch //= 2
    return max(smallest, min(batch, largest))
