"""A member's own model moves by its own gradients, whatever items and arrays they came in."""

import numpy as np
import pytest

from pliant.errors import BadInput
from pliant.train.reduce.own_model import OwnModel


def array(*values: float) -> np.ndarray:
    return np.array(values)


def test_items_count_by_their_weight() -> None:
    own = OwnModel(0.5, 1)
    own.keep([array(1.0)], 3.0, first=True)
    own.keep([array(5.0)], 1.0, first=False)
    own.keep([array(9.0)], 0.0, first=False)
    own.move([array(1.0)], [0.1])
    assert own.place([array(0.0)])[0] == pytest.approx([-0.1])  # its own mean is 2, that of the step 1
    assert own.distance == pytest.approx(0.1)


def test_a_step_that_begins_again_forgets_what_was_kept() -> None:
    own = OwnModel(0.5, 1)
    own.keep([array(7.0)], 1.0, first=True)
    own.keep([array(1.0)], 1.0, first=True)
    own.move([array(1.0)], [0.1])
    assert own.distance == 0.0


def test_an_array_without_an_own_gradient_stays_behind_the_centre() -> None:
    own = OwnModel(0.5, 2)
    own.keep([None, array(1.0)], 1.0, first=True)
    own.move([array(2.0), None], [0.1, 0.1])
    first, second = own.place([array(0.0), array(0.0)])
    assert first == pytest.approx([0.2])
    assert second == pytest.approx([-0.1])


def test_a_member_without_an_item_is_drawn_to_the_centre() -> None:
    own = OwnModel(0.5, 1)
    own.keep([array(2.0)], 1.0, first=True)
    own.move([array(0.0)], [1.0])
    for distance in (1.0, 0.5, 0.25):
        own.move([array(3.0)], [1.0])
        assert own.distance == pytest.approx(distance)


@pytest.mark.parametrize("alpha", [0, -0.1, 1.5, True, "0.1", float("nan")])
def test_a_share_that_is_none_is_refused(alpha: float) -> None:
    with pytest.raises(BadInput, match="alpha must be a number above 0 and at most 1"):
        OwnModel(alpha, 1)
