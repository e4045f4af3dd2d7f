"""The page that shows a whole job: few lines, in the words of today."""

import re

from tidy.files import ROOT

LINES_MAX = 24
OLD = re.compile(r"durable|generation|rollback|published|draining|room for|is gone|it is time|joined as")


def test_a_job_of_five_minutes_is_told_in_few_plain_lines() -> None:
    text = (ROOT / "docs" / "operating" / "output.md").read_text(encoding="utf-8")
    whole = text.split("```")[1]
    own = [line for line in whole.splitlines() if line.startswith("[pliant] ")]
    assert 10 < len(own) <= LINES_MAX
    assert [line for line in own if OLD.search(line)] == []
    first, last = (re.findall(r"\d\d:(\d\d):\d\d", line)[0] for line in (own[0], own[-1]))
    assert int(last) - int(first) >= 5
