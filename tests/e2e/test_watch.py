"""Liveness: watches that are closed or answered, leases that run out, and a coordinator that was away itself."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.examples import JOB, OTHER, furnish
from e2e.raw import Line, bearer, host, line, request
from e2e.running import Running, start, wait_for
from pliant.client import Client
from pliant.coordinator.service.liveness import SUSPICION_S
from pliant.core import messages as m
from pliant.core.messages import Event
from pliant.core.model.names import AgentId, MemberId

M1, M2 = MemberId("m1"), MemberId("m2")
SLACK_S = 1.0


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """m1 and m2 train together, with leases that outlast the test."""
    with start(home=tmp_path, lease_ttl_s=3600.0) as running:
        furnish(running)
        client = running.client()
        worlds = [event.world for event in events(client) if isinstance(event, m.WorldFormed)]
        assert worlds[-1].members == (M1, M2)
        client.send(JOB, m.Report(M1, 0, worlds[-1].number, ()))
        yield running


def events(client: Client) -> list[Event]:
    return [event for _, event in client.events(JOB, 0, 1000)]


def broken(client: Client) -> list[m.WorldBroken]:
    return [event for event in events(client) if isinstance(event, m.WorldBroken)]


def gone(client: Client) -> list[m.MemberGone]:
    return [event for event in events(client) if isinstance(event, m.MemberGone)]


def watch(running: Running, member: MemberId, after: int | None = None, wait_s: float = 60.0) -> bytes:
    revision = running.client().job(JOB).job.revision if after is None else after
    target = f"/v1/jobs/{JOB}/members/{member}/watch?after={revision}&wait_s={wait_s}"
    return request(target, host(running), bearer(running))


def watching(running: Running) -> int:
    lines = running.admin.get("/metrics").text.splitlines()
    return int(float(next(line for line in lines if line.startswith("pliant_watchers ")).split()[1]))


def opened(running: Running, member: MemberId) -> Line:
    """A watch that the coordinator is holding."""
    before, one = watching(running), Line(running)
    one.send(watch(running, member))
    wait_for(lambda: watching(running) == before + 1, "the watch to be open")
    return one


# ------------------------------------------------------------------------------------------------------ watches


def test_a_watch_that_is_closed_breaks_the_members_world_and_not_the_member(running: Running) -> None:
    client, one = running.client(), opened(running, M1)
    closed_at = time.time()
    one.close()
    wait_for(lambda: broken(client), "the suspicion to be acted on")
    assert broken(client)[0].why == "m1 does not answer"
    assert SUSPICION_S <= broken(client)[0].at - closed_at < SUSPICION_S + SLACK_S
    assert gone(client) == []


def test_a_watch_that_was_answered_may_be_closed(running: Running) -> None:
    client = running.client()
    with line(running) as one:
        one.send(watch(running, M1, after=0))
        assert one.answer().status == 200  # by news
    with line(running) as one:
        one.send(watch(running, M1, wait_s=0.01))
        assert one.answer().status == 200  # by the end of the wait
    opened(running, M2).close()
    wait_for(lambda: broken(client), "the later suspicion to be acted on")
    assert [event.why for event in broken(client)] == ["m2 does not answer"]


def test_a_member_that_comes_back_in_time_is_not_suspected(running: Running) -> None:
    client = running.client()
    opened(running, M1).close()
    wait_for(lambda: watching(running) == 0, "the watch to be closed")
    client.renew(JOB, M1, 0)
    opened(running, M2).close()
    wait_for(lambda: broken(client), "the later suspicion to be acted on")
    assert [event.why for event in broken(client)] == ["m2 does not answer"]


def test_a_second_watch_lets_the_first_one_go(running: Running) -> None:
    client = running.client()
    first, second = opened(running, M1), Line(running)
    second.send(watch(running, M1))
    assert first.answer().status == 200
    first.close()
    client.send(JOB, m.Cancel("enough"))
    assert second.answer().status == 200
    second.close()
    assert broken(client) == []


@pytest.mark.parametrize("order", [1, -1])
def test_a_watch_that_moved_to_another_connection_is_no_suspicion_in_whatever_order_that_is_seen(
    running: Running, order: int
) -> None:
    client = running.client()
    first, second, asked = opened(running, M1), Line(running), watch(running, M1)
    with running.paused():  # so that the new watch and the end of the old one are seen at once
        for step in (lambda: second.send(asked), first.close)[::order]:
            step()
    opened(running, M2).close()
    wait_for(lambda: broken(client), "the later suspicion to be acted on")
    assert [event.why for event in broken(client)] == ["m2 does not answer"]
    second.close()


# ------------------------------------------------------------------------------------------------------- leases


def test_a_member_that_is_not_heard_of_is_lost_when_its_lease_runs_out(tmp_path: Path) -> None:
    with start(home=tmp_path, lease_ttl_s=1.0) as running:
        furnish(running)
        client = running.client()

        def m1_alone_is_left() -> bool:
            client.renew(JOB, M1, 0)
            return bool(gone(client))

        wait_for(m1_alone_is_left, "m2 to be lost")
        assert [(event.member, event.how, event.why) for event in gone(client)] == [(M2, "lost", "its lease ran out")]
        wait_for(lambda: somebody_else_speaks(client) and len(gone(client)) == 2, "m1 to be lost as well")


def somebody_else_speaks(client: Client) -> bool:
    """An agent of another job: as long as no member at all is heard no member is lost (ADR 0019)."""
    client.send(OTHER, m.AgentJoin(AgentId("a1"), 4))
    return True


def silence(client: Client) -> None:
    """Several short leases in which no member is heard."""

    def passed() -> bool:
        said = re.search(r"no message arrived for (\d+) s", client.job(JOB).job.warning)
        return said is not None and int(said[1]) >= 2

    wait_for(passed, "several leases to pass in silence")


def test_while_nobody_at_all_is_heard_nobody_is_lost_and_the_job_says_so(tmp_path: Path) -> None:
    with start(home=tmp_path, lease_ttl_s=0.5) as running:
        furnish(running)
        client = running.client()
        silence(client)
        assert "no message arrived for" in client.jobs()[0].warning
        assert gone(client) == []
        wait_for(lambda: somebody_else_speaks(client) and len(gone(client)) == 2, "both to be lost")
        assert client.job(JOB).job.why.startswith("0 of the 2 workers needed")


@pytest.mark.parametrize("asked_more", [False, True], ids=["told", "asking"])
def test_who_dies_between_two_watches_is_lost_though_nobody_at_all_is_heard(tmp_path: Path, asked_more: bool) -> None:
    """Every process of the only machine is gone; m2's connection stands, so of m2 nothing is known."""
    with start(home=tmp_path, lease_ttl_s=1.0) as running:
        furnish(running)
        client, one, two = running.client(), Line(running), Line(running)
        for opened, member in ((two, M2), (one, M1)):
            opened.send(watch(running, member, after=0))
            assert opened.answer().status == 200
        if asked_more:  # and is answered, but does not live to hear it
            one.send(watch(running, M1, after=0))
        one.close()
        wait_for(lambda: gone(client), "m1 to be lost")
        assert [(event.member, event.why) for event in gone(client)] == [(M1, "its lease ran out")]
        assert [event for event in broken(client) if "does not answer" in event.why] == []
        two.close()
        wait_for(lambda: len(gone(client)) == 2, "m2 to be lost as well")


def test_whose_connection_the_coordinator_closed_itself_has_not_hung_up(tmp_path: Path) -> None:
    with start(home=tmp_path, lease_ttl_s=0.5, head_time_s=0.2) as running:
        furnish(running)
        client = running.client()
        with line(running) as one:
            one.send(watch(running, M1, after=0))
            assert one.answer().status == 200
            one.send(b"GET /v1")  # and no more: too slow
            assert one.ended()
            silence(client)
        assert gone(client) == []


def test_who_dies_before_its_first_watch_is_lost_though_nobody_at_all_is_heard(tmp_path: Path) -> None:
    with start(home=tmp_path, lease_ttl_s=1.0) as running:
        furnish(running)
        client = running.client()
        with Client([running.url], running.token) as born:
            born.send(OTHER, m.AgentJoin(AgentId("a9"), 4))
        assert "a9" in agents_of_other(client)
        wait_for(lambda: "a9" not in agents_of_other(client), "a9 to be lost")


def agents_of_other(client: Client) -> list[str]:
    return [agent.id for agent in client.job(OTHER).agents]


@pytest.mark.parametrize("watched", [False, True], ids=["renewing", "watching"])
def test_a_coordinator_that_was_away_expires_nobody_that_renews_when_it_is_back(tmp_path: Path, watched: bool) -> None:
    with start(home=tmp_path, lease_ttl_s=1.0) as running:
        furnish(running)
        client, revision = running.client(), running.client().job(JOB).job.revision
        lines = [Line(running) for _ in (M1, M2)]
        with running.paused():
            back_at = time.monotonic() + 3.0
            wait_for(lambda: time.monotonic() >= back_at, "three leases' time to pass")
            if watched:  # asked while it was away, read when it is back
                for one, member in zip(lines, (M1, M2), strict=True):
                    one.send(watch_at(running, member, revision))
        for member in (M1, M2):
            client.renew(JOB, member, 0)
        assert gone(client) == []
        wait_for(lambda: somebody_else_speaks(client) and len(gone(client)) == 2, "both to be lost, as neither renews")
        for one in lines:
            one.close()


def watch_at(running: Running, member: MemberId, after: int) -> bytes:
    """Without asking the coordinator anything: it is away."""
    target = f"/v1/jobs/{JOB}/members/{member}/watch?after={after}&wait_s=60"
    return request(target, host(running), bearer(running))
