"""Evaluation shared by members, some of whom do not live to its end."""

from pathlib import Path
from typing import Any

import pytest
import torch

from live.crowd import Crowd, ForkServer
from live.scenes import Plan, data

PLAN: dict[str, Any] = {"samples": 90, "batch": 30, "epochs": 10, "nested": True, "evaluate": True}


def test_every_sample_once_with_a_member_killed_in_the_middle(home: Path, fork_server: ForkServer) -> None:
    with Crowd(home, fork_server, target=3, size_min=2, **PLAN) as crowd:
        a, c = crowd.start(2)
        victim = crowd.join(kill={"evaluate": 1})
        assert victim.ended() == -9
        crowd.finished(a, c)
        totals = [[{**each, "computed": 0} for each in member.said("evaluated")] for member in (a, c)]
        assert totals[0] == totals[1]  # to the bit
        assert [each["count"] for each in totals[0]] == [90.0] * 10
        exact = data(Plan("", **PLAN)).x.sum(0, dtype=torch.float64).tolist()
        for each in totals[0]:
            assert each["sum"] == pytest.approx(exact, rel=1e-12)
        computed = [each["computed"] for each in a.said("evaluated")]
        assert sum(computed) < 10 * 13  # it is shared: 13 batches, ten times
