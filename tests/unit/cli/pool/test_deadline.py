"""The deadline of a job: its option, and where it is shown."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import click
import pytest

from pliant.cli import output
from pliant.cli.run.option_types import parse_deadline
from unit.cli.program import Done

Pliant = Callable[..., Done]
SIX = datetime(2026, 11, 20, 18, tzinfo=UTC).timestamp()


def test_a_deadline_is_a_time_with_its_zone_or_none() -> None:
    same = ("2026-11-20T18:00Z", "2026-11-20 18:00:00Z", "2026-11-20T19:00+01:00")
    assert [parse_deadline(text) for text in (*same, "none")] == [SIX, SIX, SIX, 0.0]
    with pytest.raises(click.BadParameter, match=r"has no time zone: add Z for UTC, or \+01:00"):
        parse_deadline("2026-11-20T18:00")
    for text in ("6h", "tomorrow", "1795197600", ""):
        with pytest.raises(click.BadParameter, match="is not a time such as 2026-11-20T18:00Z, or none"):
            parse_deadline(text)


def test_a_deadline_is_shown_with_its_distance_from_now_or_from_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: SIX - 7800)
    assert output.time_until(SIX, SIX - 7800) == "in 2 h 10 min"
    assert output.time_until(SIX, SIX + 200) == "3 min ago"
    shown = output.short_time(SIX)
    assert output.describe_deadline(SIX, SIX - 7800, None) == f"{shown}, in 2 h 10 min"
    assert output.describe_deadline(SIX, SIX, SIX - 60) == f"{shown}; it ended 1 min early"
    assert output.describe_deadline(SIX, SIX, SIX + 7200) == f"{shown}; it ended 2 h late"


def test_the_deadline_of_a_job_is_set_shown_and_removed(pliant: Pliant) -> None:
    assert pliant("queue", "set", "--slots", "4").code == 0
    later = datetime.now(timezone(timedelta(hours=1))) + timedelta(hours=2, minutes=30)
    at = ("--deadline", later.isoformat(timespec="seconds"))
    assert "pass --queue NAME with --deadline" in pliant("jobs", "create", "due", "--workers", "1:4", *at).err
    assert pliant("jobs", "create", "due", "--workers", "1:4", "--queue", "default", *at).code == 0
    seconds = int(later.timestamp())
    assert pliant("status", "due", "--json").json["spec"]["deadline"] == seconds
    assert pliant("report", "due", "--json").json["deadline"] == seconds
    assert ", in 2 h 29 min" in next(x for x in pliant("status", "due").out.splitlines() if x.startswith("deadline"))
    assert ", in 2 h 29 min" in next(x for x in pliant("report", "due").out.splitlines() if x.startswith("deadline"))

    def line() -> dict[str, object]:
        while not (jobs := pliant("queue", "--json").json["jobs"]):  # the leader plans once a second
            pass
        [found] = jobs
        return dict(found)

    found = line()
    assert (found["deadline"], found["reason"]) == (seconds, "all")
    assert str(found["why"]).startswith("4 of 4: all that it can use; its deadline is in 2 h 29 min, and its speed")
    assert "in 2 h 29 min" in pliant("queue").out
    assert pliant("jobs", "set", "due", "--deadline", "none").out.endswith(" -> none\n")
    assert not [x for x in pliant("status", "due").out.splitlines() if x.startswith("deadline")]
