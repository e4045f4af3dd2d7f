"""The batch by the noise scale."""

import pytest

from pliant.core.policy.batch_size import batch_by_noise
from pliant.errors import BadInput


@pytest.mark.parametrize(
    ("noise", "batch", "wanted"),
    [
        (None, 32, 32),
        (63.9, 32, 32),
        (64.0, 32, 64),
        (1e9, 128, 128),  # the largest
        (16.0, 32, 32),
        (15.9, 32, 16),
        (0.1, 8, 8),  # the smallest
        (None, 4, 8),
        (None, 500, 128),
        (1.0, 33, 16),
    ],
)
def test_it_doubles_and_halves_within_the_limits(noise: float | None, batch: int, wanted: int) -> None:
    assert batch_by_noise(noise, batch, smallest=8, largest=128) == wanted


@pytest.mark.parametrize(("batch", "smallest", "largest"), [(8, 0, 4), (8, 5, 4), (0, 1, 4)])
def test_limits_and_batches_that_cannot_be_are_refused(batch: int, smallest: int, largest: int) -> None:
    with pytest.raises(BadInput, match="must"):
        batch_by_noise(1.0, batch, smallest=smallest, largest=largest)
