"""The end of a process that has just disposed of a group: it exits as its script does, and never by SIGABRT."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from unit.threads import daemons, in_daemon, started_threads
from unit.torch.wired import PATIENCE_S, wired

TESTS = Path(__file__).parents[3]
LIVES = 12  # when the disposing thread is a daemon, about half of them end with SIGABRT

# As a member's view does it: a daemon thread disposes of the groups, and the script ends at that moment.
EXITING = """
import threading
from unit.torch.wired import wire_up

groups = [group for _ in range(3) for group in wire_up(2)]

def dispose():
    for group in groups:
        group.dispose()
    groups.clear()

watching = threading.Thread(target=dispose, daemon=True)
watching.start()
watching.join()
"""


def test_the_interpreter_waits_for_a_disposal_that_a_daemon_started() -> None:
    with wired(2) as groups, started_threads() as started:
        for group in groups:
            in_daemon(group.dispose)
    assert daemons(started, "pliant-dispose") == [False, False]


@pytest.mark.long
def test_a_script_that_ends_during_a_disposal_exits_with_zero() -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
    ends = [
        subprocess.run([sys.executable, "-c", EXITING], env=environment, check=False, timeout=PATIENCE_S).returncode
        for _ in range(LIVES)
    ]
    assert ends == [0] * LIVES
