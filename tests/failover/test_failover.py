"""The verdicts of `make failover`, and the places where it cannot run."""

from dataclasses import replace

import pytest

from failover import lab
from failover.__main__ import Ending, judge
from failover.cluster import AGENTS
from pliant.core import messages as m
from pliant.core.data.grid import Grid
from pliant.core.data.ledger import GENESIS
from pliant.core.model.job import Member, Terms
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.world import World, WorldKind

EXPECTED = {"weights": "w", "optimizer": "o"}
AUDIT = {"ok": True, "lost": 0, "repeated": 0, "rolled_back": 0}


def joined(name: str, pid: int) -> m.Event:
    return m.MemberJoined(0.0, Member(MemberId(name), 1, AgentId("agent1"), pid=pid), Terms(Grid(8, 8, 1, 1), seed=0))


def formed(number: int) -> m.Event:
    return m.WorldFormed(0.0, World(number, WorldKind.PLANNED, (MemberId("a"),), (1,), GENESIS))


def result(name: str, **other: str) -> dict[str, str]:
    return {"member": name, **EXPECTED, **other}


FINE = Ending(
    events=[
        joined("a", 1),
        formed(1),
        joined("b", 2),
        formed(2),
        m.MemberGone(0.0, MemberId("b"), "left", "as planned"),
    ],
    codes=[0] * AGENTS,
    audit=AUDIT,
    results=[result(f"m{number}") for number in range(AGENTS)],
)


def test_a_job_that_lost_nothing_is_fine() -> None:
    assert judge(FINE, EXPECTED) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            replace(FINE, events=[*FINE.events, m.MemberGone(0.0, MemberId("a"), "lost", "its lease ran out")]),
            "a is gone, and nothing was done to it: lost: its lease ran out",
        ),
        (replace(FINE, events=[*FINE.events, joined("a", 7)]), "a was several processes: [1, 7]"),
        (replace(FINE, events=[*FINE.events, formed(2)]), "generation 2 was formed 2 times"),
        (replace(FINE, codes=[0, 1, 0]), "the agents ended with [0, 1, 0]"),
        (replace(FINE, codes=[0, None, 0]), "the agents ended with [0, None, 0]"),
        (replace(FINE, audit={**AUDIT, "ok": False}), f"the audit is not clean: { ({**AUDIT, 'ok': False}) }"),
        (replace(FINE, audit={**AUDIT, "lost": 1}), f"the audit is not clean: { ({**AUDIT, 'lost': 1}) }"),
        (replace(FINE, audit={**AUDIT, "repeated": 1}), f"the audit is not clean: { ({**AUDIT, 'repeated': 1}) }"),
        (
            replace(FINE, audit={**AUDIT, "rolled_back": 1}),
            f"the audit is not clean: { ({**AUDIT, 'rolled_back': 1}) }",
        ),
        (replace(FINE, results=FINE.results[1:]), f"{AGENTS - 1} workers came to the end, not {AGENTS}"),
        (
            replace(FINE, results=[result("m0", optimizer="x"), *FINE.results[1:]]),
            "m0 ends with other optimizer",
        ),
    ],
)
def test_each_way_to_lose_something_is_told(wrong: Ending, said: str) -> None:
    assert judge(wrong, EXPECTED) == [said]


def test_where_it_cannot_run_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert lab.why_not() == "only root may make network namespaces"
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert lab.why_not() == "the program `ip` is missing (package iproute2)"
