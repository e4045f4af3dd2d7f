"""The page about waiting jobs, against the reasons in the code."""

from __future__ import annotations

import re

from pliant.core.allocate import Reason
from pliant.core.allocate.model import WAITS
from tidy.files import ROOT


def test_the_page_has_every_reason_in_its_table_and_no_other() -> None:
    text = (ROOT / "docs" / "operating" / "waiting.md").read_text(encoding="utf-8")
    waiting, running = (re.findall(r"^\| `([a-z-]+)` \|", part, re.M) for part in text.split("## Jobs that run"))
    assert set(waiting) == {reason.value for reason in WAITS}
    assert set(running) == {reason.value for reason in Reason if reason not in WAITS}
    assert len(waiting) + len(running) == len(Reason)
