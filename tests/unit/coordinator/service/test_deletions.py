"""A deletion is decided like a command: only for ended jobs, under the hold, and the name is free afterwards."""

from __future__ import annotations

from pliant.coordinator.service.inbox import Accepted, DeletionReply, Unavailable
from pliant.core import messages as m
from pliant.core.messages import Code, Rejection
from pliant.core.model.job import JobSpec
from pliant.errors import HoldLost, StoreTimeout, StoreUnavailable
from pliant.stores.base import Conflict
from unit.coordinator.shaky import WALL, Desk, desk, write_beside

CREATE = m.Create("demo", JobSpec(1, 2))


def ended() -> Desk:
    one = desk()
    one.tell(0.0, CREATE)
    one.tell(0.1, m.Cancel("enough"))
    return one


def delete(one: Desk, now: float = 1.0, ended_before: float | None = None) -> DeletionReply:
    assert one.service.delete("demo", ended_before, "ticket")
    (reply,) = one.service.pump(now).deleted
    assert reply.ticket == "ticket"
    return reply


def test_an_ended_job_is_deleted_and_its_name_is_free() -> None:
    one = ended()
    revision = one.revision()
    reply = delete(one)
    assert (reply.answer, reply.revision) == (Accepted(revision, None), revision)
    assert one.service.job("demo") is None
    assert one.store.read("demo") is None
    refused = delete(one, 1.1).answer
    assert isinstance(refused, Rejection)
    assert refused.code is Code.NO_JOB
    assert one.tell(1.2, CREATE).revision > revision
    assert one.job().state.value == "waiting"
    assert one.tell(1.3, m.Cancel("again")).revision == one.revision() == one.store.inner.read("demo").revision  # type: ignore[union-attr]  # it is there


def test_a_job_that_goes_on_is_refused() -> None:
    one = desk()
    one.tell(0.0, CREATE)
    refused = delete(one).answer
    assert isinstance(refused, Rejection)
    assert refused.code is Code.RUNNING
    assert one.job() is not None


def test_by_age_only_older_jobs_are_deleted() -> None:
    one = ended()
    assert isinstance(delete(one, ended_before=WALL).answer, Rejection)
    assert isinstance(delete(one, ended_before=WALL + 1).answer, Accepted)


def test_a_job_that_is_not_loaded_is_read_first() -> None:
    one = ended()
    other = Desk(one.store, "c2")
    one.service.close()
    other.service.pump(1.0)
    assert other.service.job("demo") is None  # ended jobs are not loaded when a coordinator takes over
    assert isinstance(delete(other, 1.1).answer, Accepted)


def test_a_job_that_changed_in_the_store_is_looked_at_again() -> None:
    one = ended()
    write_beside(one.store, m.Create("demo", JobSpec(1, 2)))
    assert isinstance(delete(one).answer, Unavailable)
    refused = delete(one, 1.1).answer
    assert isinstance(refused, Rejection)
    assert refused.code is Code.RUNNING


def test_after_a_timeout_the_store_tells_whether_it_was_deleted() -> None:
    one = ended()
    one.store.trouble["delete"] = [StoreTimeout("no answer")]
    assert isinstance(delete(one).answer, Unavailable)
    assert one.store.read("demo") is not None
    real = one.store.inner.delete

    def applied(job: str, expected: int, under: object = None) -> Conflict | None:
        assert real(job, expected) is None
        raise StoreTimeout("no answer")

    one.store.delete = applied  # type: ignore[method-assign]  # once
    assert isinstance(delete(one, 1.1).answer, Accepted)
    assert one.service.job("demo") is None


def test_a_deletion_that_comes_true_after_its_timeout_leaves_the_name_free() -> None:
    one = ended()
    one.store.trouble["delete"] = [StoreTimeout("no answer")]
    assert isinstance(delete(one).answer, Unavailable)  # it is still there
    assert one.store.inner.delete("demo", one.revision()) is None  # as etcd carries out a request late
    assert isinstance(one.tell(1.1, CREATE), Accepted)
    assert one.job().state.value == "waiting"


def test_a_store_that_is_away_and_a_hold_that_is_lost_delete_nothing() -> None:
    one = ended()
    one.store.trouble["delete"] = [StoreUnavailable("away"), HoldLost("over")]
    assert isinstance(delete(one).answer, Unavailable)
    assert one.service.why == ""
    assert isinstance(delete(one, 1.1).answer, Unavailable)
    assert "its hold is over" in one.service.why
    one.service.delete("demo", None, "ticket")
    one.store.trouble["hold"] = [StoreUnavailable("away")]
    (reply,) = one.service.pump(1.2).deleted
    assert isinstance(reply.answer, Unavailable)
    assert one.store.read("demo") is not None


def test_a_deletion_that_waits_for_a_stuck_store_is_refused() -> None:
    one = ended()
    one.service.delete("demo", None, "ticket")
    (reply,) = one.service.refuse_queued("the store is stuck").deleted
    assert reply == DeletionReply("ticket", Unavailable("the store is stuck"))
    assert one.service.pump(1.0).deleted == ()
