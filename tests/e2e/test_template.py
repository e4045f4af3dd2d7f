"""A worker forked from a template is what a spawned one would have been, and ends as it would have."""

import json
import os
import re
import select
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from e2e.family import Family, alive, as_module, until
from pliant.agent.process.script import FILE, MODULE, Script
from pliant.agent.process.template import TORCH, WARMING

pytestmark = pytest.mark.timeout(300)  # many processes, one after the other

PROBE = Path(__file__).with_name("probe_worker.py")


@pytest.fixture
def family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Family]:
    monkeypatch.chdir(tmp_path)  # where modules are looked for
    with Family(tmp_path) as made:
        yield made


@pytest.fixture
def warm(family: Family) -> Family:
    assert family.warm("json", "logging", "multiprocessing") == ""
    return family


@pytest.fixture
def warm_torch(family: Family) -> Family:
    assert family.warm(*TORCH) == ""
    return family


def both(family: Family, script: Script, **env: str) -> list[tuple[int, list[str]]]:
    """Return what comes of it when it is spawned, and when it is forked."""
    family.start("worker", script, **env)
    spawned = family.outcome("worker")
    family.fork("worker", script, **env)
    forked = family.outcome("worker")
    assert family.plainly["worker"] == ""
    return [spawned, forked]


def probes(family: Family, script: Script, **env: str) -> list[dict[str, Any]]:
    found = []
    for code, words in both(family, script, **env):
        assert (code, words[1:]) == (0, ["atexit"]), words
        found.append(json.loads(words[0]))
    return found


def differences(ours: Any, theirs: Any, place: str = "") -> list[str]:
    """Return where two of these are not alike, so that a failure can be read."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        names = sorted(ours.keys() | theirs.keys())
        return [found for name in names for found in differences(ours.get(name), theirs.get(name), f"{place}/{name}")]
    return [] if ours == theirs else [f"{place}: {ours} != {theirs}"]


def scripts(folder: Path) -> dict[str, Script]:
    """One probe, in every way that a script can be named."""
    for name in ("inner", "package"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").touch()
        shutil.copy(PROBE, folder / name / "probe.py")
    shutil.copy(PROBE, folder / "package" / "__main__.py")
    shutil.copy(PROBE, folder / "probe.py")
    (folder / "link.py").symlink_to(folder / "inner" / "probe.py")
    return {
        "file": Script(FILE, "probe.py", ("--lr", "0.1", "")),
        "path": Script(FILE, str(folder / "inner" / "probe.py"), ("ü x",)),
        "relative": Script(FILE, "./inner/../probe.py"),
        "link": Script(FILE, "link.py"),
        "module": Script(MODULE, "probe", ("a",)),
        "submodule": Script(MODULE, "inner.probe"),
        "package": Script(MODULE, "package"),
    }


@pytest.mark.parametrize("how", ["file", "path", "relative", "link", "module", "submodule", "package"])
def test_a_script_cannot_tell_that_it_was_forked(warm: Family, tmp_path: Path, how: str) -> None:
    script = scripts(tmp_path)[how]
    spawned, forked = probes(warm, script, RANK="1", PLIANT_X="ü")
    if script.kind == MODULE:
        assert forked["same"]["frames"].pop() == "run"  # the one that is left of ours; not in tracebacks
    assert differences(forked["same"], spawned["same"]) == []
    assert all(ours != theirs for ours, theirs in zip(forked["unlike"], spawned["unlike"], strict=True))


def test_with_torch_imported_everything_is_the_same_but_what_must_differ(warm_torch: Family, tmp_path: Path) -> None:
    script = scripts(tmp_path)["file"]
    spawned, forked = torch_probes(warm_torch, script)
    assert differences(forked["same"], spawned["same"]) == []
    assert all(ours != theirs for ours, theirs in zip(forked["unlike"], spawned["unlike"], strict=True))
    again = torch_probes(warm_torch, script)[1]
    assert differences(again["same"], forked["same"]) == []
    assert all(ours != theirs for ours, theirs in zip(forked["unlike"], again["unlike"], strict=True))


def torch_probes(family: Family, script: Script) -> list[dict[str, Any]]:
    return probes(family, script, PLIANT_PROBE_TORCH="1")


def test_what_a_worker_has_in_its_environment_is_its_own(warm: Family) -> None:
    script = warm.written("import os; print(os.environ.get('RANK'), os.environ.get('PLIANT_ONE'))")
    warm.fork("one", script, RANK="0", PLIANT_ONE="x")
    assert warm.outcome("one") == (0, ["0 x"])
    warm.fork("two", script)
    assert warm.outcome("two") == (0, ["None None"])


ENDS = {
    "return": "",
    "exit 3": "import sys; sys.exit(3)",
    "exit none": "import sys; sys.exit()",
    "exit with words": "import sys; sys.exit('words')",
    "exit from inside": "import sys\ntry:\n    sys.exit(300)\nfinally:\n    print('left')",
    "os._exit": "import os; os._exit(9)",
    "error": "def f():\n    raise ValueError('no')\nf()",
    "chain": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('x') from e",
    "group": "raise ExceptionGroup('many', [ValueError(1), TypeError(2)])",
    "syntax": "x = (\n",
    "encoding": "# -*- coding: nonsense -*-\n",
    "null": "x = 1\n\0",
    "interrupt": "raise KeyboardInterrupt",
    "sigint": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "sigterm": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "sigkill": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "abort": "import os; os.abort()",
    "atexit": "import atexit; atexit.register(print, 'last'); print('first')",
    "error in atexit": "import atexit; atexit.register(lambda: 1 / 0)",
    "thread": "import threading\ngo = threading.Event()\nthreading.Thread(target=lambda: print(go.wait(0.1))).start()",
    "error in thread": "import threading\nthreading.Thread(target=lambda: 1 / 0, name='t').start()",
    "own hook": "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__, a[1], a[2].tb_lineno)\n1 / 0",
    "broken hook": "import sys\ndef hook(*a):\n    raise TypeError('hook')\nsys.excepthook = hook\n1 / 0",
    "hook that exits": "import sys\ndef hook(*a):\n    sys.exit(7)\nsys.excepthook = hook\n1 / 0",
    "warning": "import warnings\nwarnings.warn('look', stacklevel=2)\nwarnings.warn('here')",
    "last": "import sys, atexit\natexit.register(lambda: print(sys.last_type.__name__, sys.last_value))\n[][1]",
    "stack": "import traceback\ntraceback.print_stack()",
    "unflushed": "import sys\nsys.stdout.write('no end of line')",
    "closed": "import sys\nsys.stdout.close()",
}


@pytest.mark.parametrize("kind", [FILE, MODULE])
def test_an_end_is_the_same_with_every_word_of_it(warm: Family, kind: str) -> None:
    for name, text in ENDS.items():
        if kind == MODULE and name == "stack":
            continue  # shows the one frame that is ours
        script = warm.written(text)
        spawned, forked = both(warm, as_module(script) if kind == MODULE else script)
        assert _anywhere(forked) == _anywhere(spawned), name


def _anywhere(outcome: tuple[int, list[str]]) -> tuple[int, list[str]]:
    return outcome[0], [re.sub("0x[0-9a-f]+", "0x", line) for line in outcome[1]]


def test_a_file_that_is_not_there_is_told_by_python(warm: Family, tmp_path: Path) -> None:
    script = Script(FILE, str(tmp_path / "none.py"))
    warm.start("worker", script)
    spawned = warm.outcome("worker")
    warm.fork("worker", script)
    assert warm.outcome("worker") == spawned
    assert spawned[0] == 2
    assert both(warm, Script(MODULE, "no.such.module"))[0][0] == 1


def test_standard_error_may_go_elsewhere(warm: Family) -> None:
    script = warm.written("import sys; print('out'); print('err', file=sys.stderr)")
    for fork in (False, True):
        out, err = warm.sink("out"), warm.sink("err")
        if fork:
            warm.processes.fork("worker", script, {}, out, err)
        else:
            warm.processes.start("worker", script.argv(), {}, out, err)
        assert warm.end() == ("worker", 0)
        for each in (out, err):
            each.wait(20.0)
        assert (warm.words["out"], warm.words["err"]) == (["out"], ["err"])


# ----------------------------------------------------------------------------------- what is not for a template


def test_until_there_is_a_template_workers_are_spawned(family: Family) -> None:
    assert (family.processes.warmed,) == (None,)
    script = family.written("import signal; print('up'); signal.pause()")
    family.fork("none", script)
    assert family.says("none") == ["up"]
    until(lambda: "none" in family.processes.plainly, "the reason for a plain start")
    assert family.processes.plainly["none"] == "there is no template"
    family.written("import sys; sys.stdin.read(); open('reading', 'w').close(); open('go').read()", "slow.py")
    os.mkfifo(family.folder / "go")
    family.processes.warm(["slow"], {"PYTHONPATH": str(family.folder)})
    until(lambda: (family.folder / "reading").exists(), "the template's import")
    assert family.processes.warmed == WARMING
    family.fork("early", script, PYTHONPATH=str(family.folder))
    assert family.says("early") == ["up"]
    until(lambda: "early" in family.processes.plainly, "the reason for a plain start")
    assert family.processes.plainly["early"] == WARMING
    (family.folder / "go").write_text("")
    until(lambda: family.processes.warmed == "", "the template")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import threading, signal\nthreading.Thread(target=signal.pause, daemon=True).start()", "started 1 threads"),
        ("raise RuntimeError('broken')", "unfit cannot be imported: RuntimeError: broken"),
        ("import sys; sys.exit(3)", "unfit cannot be imported: SystemExit: 3"),
        ("import os; os._exit(3)", "the template ended with exit code 3"),
        ("import os, signal; print('dying'); os.kill(os.getpid(), signal.SIGSEGV)", "ended with signal 11: dying"),
        ("kept = open('/etc/hosts')", "keeps /etc/hosts open"),
    ],
)
def test_a_template_that_cannot_be_used_says_why_and_workers_are_spawned(family: Family, text: str, why: str) -> None:
    family.written(text, "unfit.py")
    assert why in family.warm("unfit", PYTHONPATH=str(family.folder))
    family.fork("worker", family.written("print('runs')"))
    assert family.outcome("worker") == (0, ["runs"])


def test_what_imports_would_see_must_be_the_same(warm: Family) -> None:
    script = warm.written("import os, signal; print(os.environ['OMP_NUM_THREADS']); signal.pause()")
    warm.fork("worker", script, OMP_NUM_THREADS="7")
    assert warm.says("worker") == ["7"]
    assert warm.processes.plainly["worker"] == "its OMP_NUM_THREADS is not what the template was started with"


def test_a_file_beside_the_script_goes_before_what_was_imported(warm: Family) -> None:
    warm.written("word = 'mine'", "logging.py")
    script = warm.written("import logging, signal; print(logging.word); signal.pause()")
    warm.fork("worker", script)
    assert warm.says("worker") == ["mine"]
    assert "logging.py goes before a module of that name" in warm.processes.plainly["worker"]
    assert warm.processes.warmed == ""


# ------------------------------------------------------------------------------------------------------ who dies


def template_of(family: Family) -> int:
    spawner = family.processes.spawner_pid
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):  # it has ended
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == spawner and b"pliant.agent.process.template" in (path / "cmdline").read_bytes():
                    return int(path.name)
    raise AssertionError("there is no template")


def test_a_template_that_is_killed_is_told_and_can_be_warmed_again(warm: Family) -> None:
    script = warm.written("import signal; print('up'); signal.pause()")
    warm.fork("before", script)
    warm.says("before")
    os.kill(template_of(warm), signal.SIGKILL)
    until(lambda: warm.processes.warmed == "the template ended with signal 9", "the news")
    warm.fork("worker", script)
    warm.says("worker")
    until(lambda: "worker" in warm.processes.plainly, "how it was started")
    assert warm.processes.plainly["worker"] == "there is no template"
    assert alive(warm.pid("before"))
    assert warm.warm("json") == ""
    warm.fork("again", script)
    warm.says("again")
    until(lambda: "again" in warm.processes.plainly, "how it was started")
    assert warm.processes.plainly["again"] == ""


def test_a_template_that_hangs_is_given_up(warm: Family) -> None:
    script = warm.written("import signal; print('up'); signal.pause()")
    os.kill(template_of(warm), signal.SIGSTOP)
    warm.fork("worker", script)
    assert warm.says("worker") == ["up"]
    assert "did not answer" in warm.processes.plainly["worker"]
    assert "did not answer" in str(warm.processes.warmed)


def test_forked_workers_die_with_the_spawner(warm: Family) -> None:
    warm.fork("worker", warm.written("import signal; print('up'); signal.pause()"))
    warm.says("worker")
    handles = [os.pidfd_open(pid) for pid in (warm.pid("worker"), template_of(warm))]
    os.kill(warm.processes.spawner_pid, signal.SIGKILL)
    for handle in handles:
        assert select.select([handle], [], [], 20.0)[0]
        os.close(handle)
    assert warm.broken.wait(20.0)


def test_a_forked_worker_can_be_asked_to_end_or_ended(warm: Family) -> None:
    script = warm.written("import signal; print('up'); signal.pause()")
    for name in ("asked", "ended"):
        warm.fork(name, script)
        warm.says(name)
    warm.processes.terminate("asked")
    assert warm.end() == ("asked", -signal.SIGTERM)
    warm.processes.kill("ended")
    assert warm.end() == ("ended", -signal.SIGKILL)
    for number in range(20):  # at whatever point of its way
        warm.fork(f"n{number}", script)
        warm.processes.kill(f"n{number}")
        assert warm.end() == (f"n{number}", -signal.SIGKILL)


def test_many_at_once(warm: Family) -> None:
    script = warm.written("import sys; print(sys.argv[1]); sys.exit(int(sys.argv[1]))")
    for number in range(20):
        warm.fork(f"n{number}", Script(FILE, script.name, (str(number),)))
    assert {warm.end() for _ in range(20)} == {(f"n{number}", number) for number in range(20)}
    for number in range(20):
        assert warm.says(f"n{number}") == [str(number)]


LEAVES_BEHIND = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
reading, writing = os.pipe()
if not os.fork():  # one in its group
    os.write(writing, b"%d " % os.getpid())
    signal.pause()
if not os.fork():  # a daemon, forked
    os.setsid()
    if not os.fork():
        os.write(writing, b"%d " % os.getpid())
        signal.pause()
    os._exit(0)
pause = "import os, signal, sys; os.write(1, b'%d ' % os.getpid()); signal.pause()"
subprocess.Popen([sys.executable, "-c", pause], stdout=writing, start_new_session=True)  # a daemon, another program
found = b""
while found.count(b" ") < 3:
    found += os.read(reading, 100)
print(found.decode())
if sys.argv[1:]:
    sys.exit(4)
signal.pause()
"""


@pytest.mark.parametrize("fork", [False, True])
@pytest.mark.parametrize("ending", ["exits", "killed", "closed"])
def test_nothing_that_a_worker_started_is_left(warm: Family, ending: str, fork: bool) -> None:
    script = warm.written(LEAVES_BEHIND)
    other = warm.written("import signal; print('up'); signal.pause()", "other.py")
    make = warm.fork if fork else warm.start
    make("other", other)
    make("worker", Script(FILE, script.name, ("now",)) if ending == "exits" else script)
    left = [int(word) for word in warm.says("worker")[0].split()]
    if ending == "closed":
        warm.processes.close()
    else:
        if ending == "killed":
            warm.processes.terminate("worker")  # in vain
            warm.processes.kill("worker")
        assert warm.end() == ("worker", 4 if ending == "exits" else -signal.SIGKILL)
        assert alive(warm.pid("other"))
    until(lambda: not any(alive(pid) for pid in left), "the end of what it started")


def test_orphans_are_buried(family: Family) -> None:
    script = family.written(
        "import os, signal\n"
        "reading, writing = os.pipe()\n"
        "if not os.fork():\n"
        "    if not os.fork():\n"
        "        os.write(writing, b'%d' % os.getpid())\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "print(os.read(reading, 100).decode())\n"
        "signal.pause()"
    )
    family.start("worker", script)
    orphan = int(family.says("worker")[0])
    until(lambda: not Path(f"/proc/{orphan}").exists(), "the orphan's burial")
