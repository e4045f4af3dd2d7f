"""What trouble with the store must not do to leases, to other jobs, or to the inbox (rule 19, P5)."""

from pliant.coordinator.requests import RenewAgent
from pliant.core import messages as m
from pliant.core.model import Target
from pliant.errors import StoreTimeout, StoreUnavailable
from pliant.stores.base import Write
from unit.coordinator.shaky import Desk, desk
from unit.core.build import A, B, D, X, join

CREATE = m.Create("demo", 1, 6, Target(6))


def test_a_reload_does_not_forget_who_was_vouched_for() -> None:
    one = desk()
    one.tell(0.0, CREATE, join(A), join(B))
    one.tell(0.0, m.Report(A, 0, 1, (), frozenset({A, B})))
    for half in range(1, 39):
        one.tell(half / 2, m.Report(A, 0, 1, ()))
    one.store.trouble["write"] = [StoreTimeout("slow")]
    one.tell(19.25, join(D))
    one.idle(19.5, 20.0)
    assert B in one.job().members


def test_time_s_own_requests_get_no_reply() -> None:
    one = desk()
    one.tell(0.0, CREATE, join(A))
    one.idle(0.5, 9.5)
    one.store.trouble["write"] = [StoreUnavailable("x")]
    one.pump(10.0)
    one.store.trouble["hold"] = [StoreUnavailable("x")]
    assert one.pump(12.0).replies == ()


def test_an_agent_s_expiry_does_not_outlive_a_takeover() -> None:
    one = desk()
    one.tell(0.0, CREATE, m.AgentJoin(X, 2))
    one.idle(0.5, 9.5)
    one.store.trouble["write"] = [StoreUnavailable("x")]
    one.pump(10.0)
    one.pump(20.0)  # the hold was lost in between: a new term, and every lease afresh
    assert [agent.id for agent in one.job().agents] == [X]


def test_an_agent_heard_of_again_is_not_expired() -> None:
    one = desk()
    one.tell(0.0, CREATE, m.AgentJoin(X, 2))
    one.idle(0.5, 9.5)
    one.store.trouble["write"] = [StoreUnavailable("x")] * 2
    one.pump(10.0)
    one.pump(10.5, RenewAgent(X))
    one.pump(11.0)
    assert [agent.id for agent in one.job().agents] == [X]


def test_one_damaged_job_does_not_keep_the_others_from_being_coordinated() -> None:
    one = desk()
    one.tell(0.0, CREATE)
    one.store.inner.write([Write("broken", 0, (b"{}",), b"nonsense")])
    two = Desk(one.store, "c2")
    pumped = two.pump(10.0)
    assert len(pumped.bugs) == 1
    assert pumped.bugs[0].startswith("broken cannot be read, the other jobs go on: ")
    two.tell(10.1, join(A))
    assert A in two.job().members
