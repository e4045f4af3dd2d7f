"""The gradient noise scale: its formula, and cases whose answer is known."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.core.policy.noise_scale import (
    NoiseAverages,
    NoiseMeasurement,
    average_noise,
    measure_noise,
    noise_scale,
)


def test_two_parts_whose_gradients_are_known() -> None:
    """Gradients 3 and 1 of two parts of 4 samples: the mean is 2, and the parts lie 1 beside it."""
    found = measure_noise(part_square=(9 + 1) / 2, parts_per_weight=2 / 8, whole_square=4.0, weight=8.0)
    assert found == NoiseMeasurement(square=3.0, variance=8.0)


@given(st.floats(0.1, 100.0), st.floats(0.1, 100.0), st.integers(1, 64), st.integers(2, 64))
def test_with_equal_parts_it_is_the_usual_formula(part_square: float, whole: float, small: int, parts: int) -> None:
    large = small * parts
    found = measure_noise(part_square, parts / large, whole, float(large))
    assert found is not None
    assert found.variance == pytest.approx((part_square - whole) / (1 / small - 1 / large), rel=1e-6, abs=1e-6)
    assert found.square == pytest.approx((large * whole - small * part_square) / (large - small), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("sizes", [(8, 8, 8, 8), (1, 2, 4, 25), (16, 16)])
def test_the_estimates_are_those_of_the_data_whatever_the_sizes_of_the_parts(sizes: tuple[int, ...]) -> None:
    """Samples with gradients of mean 2 and variance 9 in one dimension."""
    chance = random.Random(5)
    weight = sum(sizes)
    averages = NoiseAverages()
    squares, variances = [], []
    for _ in range(4000):
        parts = [[chance.gauss(2.0, 3.0) for _ in range(size)] for size in sizes]
        part_square = sum(size * (sum(part) / size) ** 2 for size, part in zip(sizes, parts, strict=True)) / weight
        whole = (sum(map(sum, parts)) / weight) ** 2
        found = measure_noise(part_square, len(sizes) / weight, whole, float(weight))
        assert found is not None
        squares.append(found.square)
        variances.append(found.variance)
        averages = average_noise(averages, found, decay=0.999)
    assert sum(squares) / len(squares) == pytest.approx(4.0, rel=0.03)
    assert sum(variances) / len(variances) == pytest.approx(9.0, rel=0.06)
    assert noise_scale(averages) == pytest.approx(9 / 4, rel=0.12)
    assert averages.measured == 4000


@pytest.mark.parametrize(
    ("part_square", "parts_per_weight", "whole", "weight"),
    [
        (5.0, 1 / 8, 5.0, 8.0),
        (5.0, 0.0, 5.0, 8.0),
        (math.inf, 2 / 8, 4.0, 8.0),
        (5.0, 2 / 8, math.nan, 8.0),
        (5.0, math.nan, 4.0, 8.0),
        (math.inf, 2 / 8, math.inf, 8.0),
    ],
)
def test_a_single_part_and_a_gradient_that_is_not_finite_measure_nothing(
    part_square: float, parts_per_weight: float, whole: float, weight: float
) -> None:
    assert measure_noise(part_square, parts_per_weight, whole, weight) is None


def test_the_first_measurement_counts_in_full_and_later_ones_by_the_decay() -> None:
    first = average_noise(NoiseAverages(), NoiseMeasurement(4.0, 8.0), 0.75)
    assert first == NoiseAverages(4.0, 8.0, 1)
    assert average_noise(first, NoiseMeasurement(8.0, 0.0), 0.75) == NoiseAverages(5.0, 6.0, 2)


def test_the_noise_scale_is_unknown_before_a_measurement_and_while_the_gradient_is_lost_in_noise() -> None:
    assert noise_scale(NoiseAverages()) is None
    assert noise_scale(NoiseAverages(-0.5, 8.0, 3)) is None
    assert noise_scale(NoiseAverages(4.0, 8.0, 1)) == 2.0
    assert noise_scale(NoiseAverages(4.0, -1.0, 1)) == 0.0
