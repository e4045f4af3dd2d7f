"""The file with the prices of a slot, and the costs that are printed."""

from __future__ import annotations

import time
from pathlib import Path

import click
import pytest

from pliant.cli.commands import queue
from pliant.cli.pool.prices import parse_prices
from pliant.cli.run.option_types import parse_cost

NOON = 1_763_467_200.0  # 2025-11-18, UTC


def written(folder: Path, text: str) -> str:
    path = folder / "prices.csv"
    path.write_text(text)
    return str(path)


def test_lines_in_any_order_and_of_any_zone_become_prices_by_time(tmp_path: Path) -> None:
    text = "time, price\n2025-11-18T14:00:00+01:00,0.5\n\n2025-11-18T12:00:00Z\t0.25\n2025-11-18T12:30:00Z , 1\n"
    assert parse_prices(written(tmp_path, text)) == ((NOON, 0.25), (NOON + 1800, 1.0), (NOON + 3600, 0.5))


def test_none_removes_all_prices() -> None:
    assert parse_prices("none") == ()


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "has no prices. Write lines such as 2026-11-18T12:00:00Z,0.25, or pass none."),
        ("2025-11-18T12:00:00,1\n", "line 1: 2025-11-18T12:00:00 has no time zone: add Z for UTC, or +01:00."),
        ("noon,1\n", "line 1: 'noon,1' is not TIME,PRICE, such as 2026-11-18T12:00:00Z,0.25."),
        ("2025-11-18T12:00:00Z,-1\n", "line 1: '2025-11-18T12:00:00Z,-1' is not TIME,PRICE"),
        ("2025-11-18T12:00:00Z,1,us-east-1a\n", "is not TIME,PRICE"),
        ("2025-11-18T12:00:00Z,nan\n", "is not TIME,PRICE"),
        (
            "2025-11-18T12:00:00Z,1\n2025-11-18T13:00:00+01:00,2\n",
            "line 2: a second price for the same time: '2025-11-18T13:00:00+01:00,2'.",
        ),
    ],
)
def test_a_file_that_is_not_clear_is_refused_with_its_line(tmp_path: Path, text: str, wrong: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(click.BadParameter) as refused:
        parse_prices(path)
    assert path in refused.value.message
    assert wrong in refused.value.message


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(click.BadParameter, match=r"cannot be read: .*No such file"):
        parse_prices(str(tmp_path / "nothing.csv"))


def test_a_cost_limit_is_a_number_above_0_or_none() -> None:
    assert [parse_cost(text) for text in ("40", "12.50", "none")] == [40.0, 12.5, 0.0]
    for text in ("0", "-1", "1e9", "inf", "4 EUR", ""):
        with pytest.raises(click.BadParameter, match=r"is not a number above 0, such as 40 or 12\.50, or none"):
            parse_cost(text)


def test_slots_are_a_number_or_auto() -> None:
    assert (queue.parse_slots("8"), queue.parse_slots("auto")) == (8, "auto")
    with pytest.raises(click.BadParameter, match="is neither a number nor auto"):
        queue.parse_slots("many")


def test_costs_are_shown_with_their_limits() -> None:
    assert (queue.describe_cost(12.4, None), queue.describe_cost(12.4, 50.0)) == ("12.40", "12.40/50.00")


def test_the_price_of_the_moment_and_the_next_one_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    prices = ((NOON, 0.25), (NOON + 3600, 0.5))
    monkeypatch.setattr(time, "time", lambda: NOON + 1)
    assert queue.describe_prices(prices).startswith("0.25 for a slot and hour; 0.5 from ")
    monkeypatch.setattr(time, "time", lambda: NOON + 7200)
    assert queue.describe_prices(prices) == "0.5 for a slot and hour"
    monkeypatch.setattr(time, "time", lambda: NOON - 1)
    assert queue.describe_prices(prices).startswith("none yet for a slot and hour; 0.25 from ")
