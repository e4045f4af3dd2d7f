"""The order in which pods of an older template leave."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pliant.kube.model import AgentView, Pod
from pliant.kube.scaling import plan_change
from unit.kube.stand_ins import NOW, waiting_view


def pod(index: int, template: str) -> Pod:
    return Pod(f"digits-w{index}", f"u{index}", 3, "worker", index, "surplus", template, NOW, "Running", True)


def agent(members: int) -> AgentView:
    return AgentView(members, members, holds=True, draining=False, wanted=1, ready=members)


@pytest.mark.parametrize("granted", [None, 4])
def test_an_old_pod_whose_worker_does_not_run_leaves_for_a_new_one_that_is_ready(granted: int | None) -> None:
    pods = (pod(1, "old"), pod(2, "old"), pod(3, "old"), pod(4, "new"))

    def removed(new: int) -> list[str]:
        agents = {"digits-w1": agent(1), "digits-w2": agent(0), "digits-w3": agent(0), "digits-w4": agent(new)}
        view = replace(waiting_view(), agents=agents, granted=granted)
        return [each.name for each in plan_change(pods, 3, 1, "new", view).remove]

    assert removed(new=0) == []
    assert removed(new=1) == ["digits-w3"]
