"""Processes that end with their parent, and those that clean up after it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from e2e.running import wait_for

PARENT = """
import os, subprocess, sys
from pliant.parent_death import die_with_parent
me = os.getpid()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], preexec_fn=lambda: die_with_parent(me))
print(child.pid, flush=True)
child.wait()
"""

ORPHAN = """
import os
from pliant.parent_death import die_with_parent
die_with_parent(os.getppid() + 1)
print("went on")
"""


def is_gone(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


def test_a_child_is_killed_when_its_parent_is() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not is_gone(child)
        parent.send_signal(signal.SIGKILL)
        wait_for(lambda: is_gone(child), "the child's end")


def test_a_child_whose_parent_is_gone_already_ends_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, check=False)
    assert (done.returncode, done.stdout) == (1, b"")


def test_a_helper_gets_lines_and_ends_when_its_parent_closes_the_pipe(tmp_path: Path) -> None:
    module = tmp_path / "helper_for_test.py"
    module.write_text(
        "import os, sys\n"
        "from pliant.parent_death import ignore_stop_signals\n"
        "ignore_stop_signals()\n"
        "data = b''\n"
        "while more := os.read(int(sys.argv[1]), 100):\n"
        "    data += more\n"
        "open(sys.argv[2], 'wb').write(data)\n"
    )
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    code = (
        "import sys\n"
        "from pliant.parent_death import CleanupProcess\n"
        "with CleanupProcess('helper_for_test', sys.argv[1], end_s=30) as helper:\n"
        "    helper.write('one\\n')\n"
        "    helper.write('two\\n')\n"
    )
    found = tmp_path / "found"
    subprocess.run([sys.executable, "-c", code, str(found)], env=env, check=True)
    assert found.read_text() == "one\ntwo\n"
