"""Every way of hearing that this machine is going, one look at a time."""

import json
import os
import select
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.metadata import Metadata, event
from pliant.agent.notices import KINDS, Notice, Trouble, Watcher, watchers
from pliant.agent.notices.base import written_notice
from pliant.agent.notices.clouds import ANSWER_S, AwsWatcher, AzureWatcher, GcpWatcher, Server
from pliant.agent.notices.local import CommandWatcher, FileWatcher
from pliant.errors import BadInput
from unit.descriptors import many_descriptors

NOW = 1_600_000_000.0  # 2020-09-13T12:26:40Z


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    with Metadata() as found:
        yield found


def look(watcher: Watcher) -> Notice | None:
    """A look that has nothing else to remark."""
    return watcher.look(pytest.fail)


# ----------------------------------------------------------------------------------------------------------------- aws


def test_aws_says_when_and_what(metadata: Metadata) -> None:
    watcher = AwsWatcher(metadata.place, lambda: NOW)
    assert look(watcher) is None
    metadata.spot("terminate", "2020-09-13T12:28:40Z")
    assert look(watcher) == Notice(120.0, "AWS will terminate this spot instance")
    assert [each for each in metadata.asked if "token" in each] == ["PUT /latest/api/token"]


def test_a_moment_that_has_passed_or_cannot_be_read_is_no_obstacle(metadata: Metadata) -> None:
    watcher = AwsWatcher(metadata.place, lambda: NOW)
    metadata.spot("stop", "2020-09-13T12:00:00Z")
    assert look(watcher) == Notice(0.0, "AWS will stop this spot instance")
    metadata.spot("hibernate", "at once")
    assert look(watcher) == Notice(None, "AWS will hibernate this spot instance")
    metadata.spot("none", "")
    assert look(watcher) is None


def test_a_token_that_has_ended_is_replaced(metadata: Metadata) -> None:
    watcher = AwsWatcher(metadata.place)
    assert look(watcher) is None
    metadata.tokens.clear()
    assert look(watcher) is None
    assert len([each for each in metadata.asked if "token" in each]) == 2


def test_a_recommendation_is_told_once_and_is_no_notice(metadata: Metadata) -> None:
    watcher = AwsWatcher(metadata.place)
    metadata.rebalance("2020-09-13T12:00:00Z")
    said: list[str] = []
    for _ in range(3):
        assert watcher.look(said.append) is None
    (text,) = said
    assert text.startswith("AWS recommends, since 2020-09-13T12:00:00Z, to replace this spot instance")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "nothing that can be read"),
        (b"[1]", "nothing that can be read"),
        (b'{"action": 3}', "no action that can be read"),
        (b'{"action": "rm -rf"}', "no action that can be read"),
        (b"{" * 100_000, "nothing that can be read"),
        (b"x" * (1 << 19), "with more than"),
    ],
    ids=range(6),
)
def test_an_answer_that_makes_no_sense_is_trouble(metadata: Metadata, body: bytes, why: str) -> None:
    metadata.aws["/latest/meta-data/spot/instance-action"] = body
    with pytest.raises(Trouble, match=why):
        look(AwsWatcher(metadata.place))


@pytest.mark.parametrize(
    ("instead", "why"),
    [
        ((403, b""), "is turned off"),
        ((503, b""), "answered 503 when asked for a token"),
        ((401, b""), "answered 401 when asked for a token"),
        ((200, b""), "a token that is none"),
        ((200, b"a\nb"), "a token that is none"),
        ((301, b""), "answered 301"),
    ],
)
def test_no_token_is_trouble(metadata: Metadata, instead: tuple[int, bytes], why: str) -> None:
    metadata.instead = instead
    with pytest.raises(Trouble, match=why):
        look(AwsWatcher(metadata.place))


# ----------------------------------------------------------------------------------------------------------------- gcp


def test_google_says_so_at_once_if_it_was_said_before(metadata: Metadata) -> None:
    metadata.change("preempted", "TRUE")
    assert look(GcpWatcher("preempted", metadata.place)) == Notice(30.0, "Google Cloud preempts this machine")
    assert metadata.asked == ["GET /computeMetadata/v1/instance/preempted"]


def test_google_is_waited_for(metadata: Metadata) -> None:
    watcher = GcpWatcher("preempted", metadata.place, wait_s=0)
    assert look(watcher) is None
    assert look(watcher) is None
    assert "wait_for_change=true&timeout_sec=0&last_etag=" in metadata.asked[-1]
    metadata.change("preempted", "TRUE")
    assert look(watcher) is not None


def test_maintenance_that_ends_the_machine_is_a_notice_and_a_move_is_told(metadata: Metadata) -> None:
    watcher = GcpWatcher("maintenance-event", metadata.place, wait_s=0)
    said: list[str] = []
    metadata.change("maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE")
    for _ in range(2):
        assert watcher.look(said.append) is None
    assert said == ["Google Cloud moves this machine to another host; it will stand still for a moment"]
    metadata.change("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
    assert look(watcher) == Notice(60.0, "Google Cloud ends this machine for maintenance of its host")


def test_what_is_not_googles_is_not_believed(metadata: Metadata) -> None:
    metadata.instead = (200, b"TRUE")
    with pytest.raises(Trouble, match="is not Google Cloud's"):
        look(GcpWatcher("preempted", metadata.place))
    metadata.instead = None
    metadata.change("preempted", "PERHAPS")
    with pytest.raises(Trouble, match="says 'PERHAPS' of preempted"):
        look(GcpWatcher("preempted", metadata.place))


# --------------------------------------------------------------------------------------------------------------- azure


def azure(metadata: Metadata) -> AzureWatcher:
    return AzureWatcher(metadata.place, lambda: NOW)


def test_azure_says_which_machine_and_when(metadata: Metadata) -> None:
    watcher = azure(metadata)
    assert look(watcher) is None
    metadata.schedule(event("Preempt", "trainer_1", not_before="Sun, 13 Sep 2020 12:27:10 GMT"))
    assert look(watcher) is None
    metadata.schedule(event("Preempt", "other", "TRAINER_0", not_before="Sun, 13 Sep 2020 12:27:10 GMT"))
    assert look(watcher) == Notice(30.0, "Azure preempts this machine")


def test_of_several_events_the_soonest_counts_and_one_that_has_begun_has_no_time_left(metadata: Metadata) -> None:
    later = event("Terminate", "trainer_0", not_before="Sun, 13 Sep 2020 12:36:40 GMT", Description="scale in")
    metadata.schedule(later)
    assert look(azure(metadata)) == Notice(600.0, "Azure ends this machine: scale in")
    metadata.schedule(later, event("Preempt", "trainer_0"))
    assert look(azure(metadata)) == Notice(0.0, "Azure preempts this machine")


def test_a_document_is_looked_through_once(metadata: Metadata) -> None:
    watcher = azure(metadata)
    said: list[str] = []
    metadata.schedule(event("Freeze", "trainer_0", Description="host update"))
    for _ in range(3):
        assert watcher.look(said.append) is None
    assert said == ["Azure is going to freeze this machine: host update"]
    metadata.schedule(event("Reboot", "trainer_0"))
    assert watcher.look(said.append) is None
    assert said[1:] == ["Azure is going to reboot this machine"]
    assert len([each for each in metadata.asked if "compute/name" in each]) == 1


@pytest.mark.parametrize("events", [None, 3, ["x"], {"a": 1}])
def test_a_document_without_its_events_is_trouble_until_it_has_them(metadata: Metadata, events: object) -> None:
    watcher = azure(metadata)
    assert look(watcher) is None
    metadata.instead = (200, json.dumps({"DocumentIncarnation": 9, "Events": events}).encode())
    with pytest.raises(Trouble, match="without its list of events"):
        look(watcher)
    metadata.instead = None
    metadata.incarnation = 9
    metadata.events = [event("Preempt", "trainer_0", not_before="nonsense")]
    assert look(watcher) == Notice(None, "Azure preempts this machine")


def test_odd_events_are_passed_over(metadata: Metadata) -> None:
    metadata.schedule({}, event("Preempt") | {"Resources": "trainer_0"})
    assert look(azure(metadata)) is None


def test_a_machine_without_a_name_cannot_be_told_from_others(metadata: Metadata) -> None:
    metadata.azure_name = ""
    with pytest.raises(Trouble, match="does not know this machine's name"):
        look(azure(metadata))


# --------------------------------------------------------------------------------------------------------- all of them


CLOUDS = [AwsWatcher, AzureWatcher, lambda server: GcpWatcher("preempted", server)]


@pytest.mark.parametrize("make", CLOUDS, ids=["aws", "azure", "gcp"])
def test_where_nobody_listens_is_said_with_what_it_may_mean(make: type[AwsWatcher]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening
        with pytest.raises(Trouble, match=r"cannot be asked: Connection refused. Is this machine one of"):
            look(make(Server("127.0.0.1", taken.getsockname()[1])))


def test_one_that_never_answers_is_not_waited_for_long() -> None:
    assert ANSWER_S <= 5
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(Trouble, match=r"does not answer\. Is this machine one of AWS's"),
    ):
        look(AwsWatcher(Server("127.0.0.1", silent.getsockname()[1], answer_s=0.05)))


@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 banana\r\n\r\n", b"\x00" * 100, b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"]
)
def test_one_that_speaks_no_http_is_trouble(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            link, _ = server.accept()
            with link:
                link.recv(1000)
                link.sendall(said)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(Trouble):
            look(AwsWatcher(Server("127.0.0.1", server.getsockname()[1])))
        thread.join(20)


def test_names_mean_what_the_table_says() -> None:
    found = watchers(["aws", "gcp", "azure", "file:/run/x", "command:a 'b c'"])
    assert [each.name for each in found] == ["aws", "gcp", "gcp", "azure", "file:/run/x", "command:a 'b c'"]
    assert set(KINDS) == {"aws", "gcp", "azure", "file", "command"}
    assert all(each.pause_s > 0 for each in found)


@pytest.mark.parametrize("name", ["", "ibm", "aws:x", "gcp:", "azure:y", "file", "file:", "command:", "command:'a"])
def test_what_means_nothing_is_refused(name: str) -> None:
    if name == "gcp:":
        assert len(watchers([name])) == 2
        return
    with pytest.raises(BadInput):
        watchers([name])


# ---------------------------------------------------------------------------------------------------- file and command


def test_a_file_that_appears_is_a_notice(tmp_path: Path) -> None:
    path = tmp_path / "going"
    watcher = FileWatcher(str(path))
    assert look(watcher) is None
    path.write_text("")
    assert look(watcher) == Notice(None, f"{path} is there")
    path.write_text("90\nrack 4 is switched off\n")
    assert look(watcher) == Notice(90.0, "rack 4 is switched off")
    path.unlink()
    path.mkdir()
    assert look(watcher) == Notice(None, f"{path} is there")
    assert look(FileWatcher(str(path / "below" / "it"))) is None
    os.mkfifo(tmp_path / "pipe")
    assert look(FileWatcher(str(tmp_path / "pipe"))) == Notice(None, f"{tmp_path / 'pipe'} is there")


def test_a_file_that_cannot_be_looked_at_is_trouble(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(Trouble, match="cannot be looked at: Too many levels"):
        look(FileWatcher(str(loop)))


@given(st.text(max_size=2000))
def test_whatever_was_written_is_a_notice(text: str) -> None:
    notice = written_notice(text, "otherwise")
    assert notice.why
    assert len(notice.why.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "notice"),
    [
        ("120", Notice(120.0, "x")),
        ("  2.5 \n\n  why so  \nand so", Notice(2.5, "why so; and so")),
        ("120 MB are left", Notice(None, "120 MB are left")),
        ("-5", Notice(None, "-5")),
        ("inf", Notice(None, "inf")),
        ("\n\n", Notice(None, "x")),
    ],
)
def test_a_number_alone_on_the_first_line_is_seconds(text: str, notice: Notice) -> None:
    assert written_notice(text, "x") == notice


def python(source: str) -> str:
    return f'"{sys.executable}" -c "{source}"'


def test_a_command_that_ends_well_is_a_notice() -> None:
    assert look(CommandWatcher(python("print(60); print('maintenance')"))) == Notice(60.0, "maintenance")
    assert look(CommandWatcher("false")) is None
    assert look(CommandWatcher("true")) == Notice(None, "command:true says so")


def test_a_command_is_run_by_an_agent_with_many_open_files() -> None:
    with many_descriptors():
        assert look(CommandWatcher("true")) == Notice(None, "command:true says so")


def test_a_command_is_given_to_no_shell(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    notice = look(CommandWatcher(f"echo hello; touch {trap} $HOME"))
    assert notice == Notice(None, f"hello; touch {trap} $HOME")
    assert not trap.exists()


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("/no/such/program", "cannot be started: No such file"),
        (python("import sys; sys.exit(127)"), "ended with 127"),
        (python("import os; os.kill(os.getpid(), 9)"), "was ended by signal 9"),
    ],
)
def test_a_command_that_cannot_answer_is_trouble(command: str, why: str) -> None:
    with pytest.raises(Trouble, match=why):
        look(CommandWatcher(command))


@pytest.mark.parametrize("source", ["import time; time.sleep(999)", "while True: print('y' * 1000)"])
def test_a_command_that_does_not_end_is_killed(source: str) -> None:
    with pytest.raises(Trouble, match=r"has not ended after 0.3 s and was killed"):
        look(CommandWatcher(python(source), limit_s=0.3))


def test_what_a_command_left_running_is_killed_and_not_waited_for(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    left = "import subprocess as s, sys, pathlib as p; c = s.Popen([sys.executable, '-c', 'while True: pass']); "
    notice = look(CommandWatcher(python(f"{left}p.Path('{pid}').write_text(str(c.pid))")))
    assert notice is not None
    assert _gone(int(pid.read_text()))


def _gone(pid: int) -> bool:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 20)[0])
    finally:
        os.close(handle)
