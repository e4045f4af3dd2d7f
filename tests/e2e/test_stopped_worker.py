"""A worker of `pliant run` that is stopped with SIGSTOP: its agent ends the wait of the others before its lease."""

import os
import signal
from pathlib import Path

import pytest

from e2e.launched import TRAINER, Launched
from e2e.running import wait_for
from pliant.core import messages as m

LASTS = ("0.05", "100000")  # seconds of a step, and epochs: the test does not wait for the end


@pytest.mark.timeout(300)
def test_a_stopped_worker_is_replaced_and_no_other_is_lost(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "1:3", "--target", "2", str(TRAINER), *LASTS) as run:
        before = run.has_members(2)
        victim, survivor = sorted(before)
        os.kill(before[victim], signal.SIGSTOP)
        wait_for(lambda: len(found := run.members()) == 2 and victim not in found, "its replacement", 120)
        assert run.members()[survivor] == before[survivor]
        with run.client() as client:
            events = [event for _, event in client.events(run.job, 0, 1000)]
        lost = {
            str(event.member): event.why for event in events if isinstance(event, m.MemberGone) and event.how == "lost"
        }
        assert list(lost) == [victim]
        assert "lease" not in lost[victim]
        run.sees(f"{victim} was stopped (SIGSTOP) for 2 s while the other workers waited for it; killed it")
