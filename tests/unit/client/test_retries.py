"""Retries happen in the background of a training script, and leave no trace in it."""

import random
import socket

import numpy as np
import pytest

from pliant.client import Client
from pliant.credentials import make_token
from pliant.errors import Unreachable


def test_a_retry_draws_nothing_from_the_generators_of_user_code() -> None:
    """A sample that was read meanwhile would be another one: the bits of a deterministic run would differ."""
    random.seed(5)
    np.random.seed(5)
    before, arrays = random.getstate(), np.random.get_state()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # it never listens
        where = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Client([where], make_token(), patience_s=0.3) as client, pytest.raises(Unreachable):
            client.jobs()
    assert random.getstate() == before
    assert all(np.array_equal(one, other) for one, other in zip(np.random.get_state(), arrays, strict=True))
