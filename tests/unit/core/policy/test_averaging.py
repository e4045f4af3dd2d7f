"""Model averaging by a centre and offsets is model averaging by whole models."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.core.policy.averaging import next_offset

numbers = st.floats(-10.0, 10.0)


@given(
    st.lists(st.tuples(numbers, st.floats(0.1, 3.0)), min_size=1, max_size=5),
    st.floats(0.01, 0.3),
    st.floats(0.05, 1.0),
)
def test_the_models_are_those_of_the_averaging_rule(
    members: list[tuple[float, float]], rate: float, alpha: float
) -> None:
    """Each member descends to its own target, with its own curvature."""
    models = [0.0 for _ in members]
    centre, offsets = 0.0, [0.0 for _ in members]
    for _ in range(20):
        grads = [curve * (model - aim) for model, (aim, curve) in zip(models, members, strict=True)]
        mean_model, mean_grad = sum(models) / len(models), sum(grads) / len(grads)
        models = [
            (1 - alpha) * model + alpha * mean_model - rate * grad for model, grad in zip(models, grads, strict=True)
        ]
        offsets = [
            next_offset(offset, grad, mean_grad, rate=rate, alpha=alpha)
            for offset, grad in zip(offsets, grads, strict=True)
        ]
        centre -= rate * mean_grad
        assert [centre + offset for offset in offsets] == pytest.approx(models, rel=1e-6, abs=1e-6)
        assert sum(offsets) == pytest.approx(0.0, abs=1e-6)
