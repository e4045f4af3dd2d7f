"""Notices as an agent hears them: threads that listen, servers that vanish, and one call when it is time."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.launched import TRAINER, Launched, family
from e2e.metadata import Metadata, event
from e2e.running import wait_for
from pliant.agent.notices import Notice, Notices
from pliant.agent.notices.clouds import Server

QUICK_S = 0.02


class Heard:
    """The notices that an agent received."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.complaints: list[str] = []

    def listen(self, *names: str, server: Server | None = None) -> Notices:
        return Notices(names, self.notices.append, self.complaints.append, server=server, pause_s=QUICK_S)

    def hears(self) -> Notice:
        wait_for(lambda: self.notices, "a notice")
        (notice,) = self.notices
        return notice


def spot(metadata: Metadata) -> None:
    metadata.spot("terminate", "2020-01-01T00:00:00Z")


def preempt_on_google(metadata: Metadata) -> None:
    metadata.change("preempted", "TRUE")


def preempt_on_azure(metadata: Metadata) -> None:
    metadata.schedule(event("Preempt", "trainer_0", not_before="Wed, 01 Jan 2020 00:00:00 GMT"))


CLOUDS = [
    ("aws", spot, "AWS will terminate this spot instance"),
    ("gcp", preempt_on_google, "Google Cloud preempts this machine"),
    ("azure", preempt_on_azure, "Azure preempts this machine"),
]


@pytest.mark.parametrize(("name", "announce", "why"), CLOUDS)
def test_a_notice_is_heard_once(name: str, announce: Callable[[Metadata], None], why: str) -> None:
    heard = Heard()
    with Metadata() as metadata, heard.listen(name, server=metadata.place):
        wait_for(lambda: len(metadata.asked) > 3 or (name == "gcp" and len(metadata.asked) > 1), "it to be asked")
        assert heard.notices == []
        announce(metadata)
        assert heard.hears().why == why
        seen = len(metadata.asked)
        announce(metadata)
    assert len(heard.notices) == 1
    assert len(metadata.asked) <= seen + 2  # what was under way
    assert heard.complaints == []


@pytest.mark.parametrize(("name", "announce", "why"), CLOUDS)
def test_a_server_that_vanishes_is_told_once_and_heard_again_when_it_is_back(
    name: str, announce: Callable[[Metadata], None], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard()
    with Metadata() as metadata:
        metadata.instead = (503, b"")  # not there from the beginning: reported at once, because the user named it
        with heard.listen(name, server=metadata.place):
            threads = 2 if name == "gcp" else 1
            wait_for(lambda: len(heard.complaints) == threads, "a complaint")
            assert heard.complaints[0].startswith(f"Notices from {name} cannot be read: ")
            assert heard.complaints[0].endswith("Retrying.")
            metadata.instead = None
            wait_for(lambda: heard.complaints.count(f"Notices from {name} can be read again.") == threads, "its return")
            metadata.close()
            metadata.change("maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE")  # ends what is held back
            metadata.change("preempted", "FALSE ")
            wait_for(lambda: len(heard.complaints) >= 3 * threads, "a complaint")
            metadata.change("maintenance-event", "NONE")
            metadata.change("preempted", "FALSE")
            announce(metadata)
            metadata.serve()
            assert heard.hears().why == why


def test_one_thing_that_cannot_be_looked_at_does_not_keep_others_from_being_heard(tmp_path: Path) -> None:
    heard = Heard()
    path = tmp_path / "going"
    with heard.listen("command:/no/such/program", f"file:{path}"):
        wait_for(lambda: heard.complaints, "a complaint")
        path.write_text("15\nthe power goes")
        assert heard.hears() == Notice(15.0, "the power goes")
    (complaint,) = heard.complaints
    assert "/no/such/program cannot be started: No such file or directory." in complaint


def test_after_the_end_nothing_is_heard(tmp_path: Path) -> None:
    heard = Heard()
    path = tmp_path / "going"
    notices = heard.listen(f"file:{path}")
    notices.start()
    notices.close()
    path.touch()
    for thread in threading.enumerate():
        if thread.name == f"notice file:{path}":
            thread.join(20)
    assert heard.notices == []


def test_a_remark_is_made_once_also_if_the_document_has_no_number() -> None:
    heard = Heard()
    with Metadata() as metadata:
        with heard.listen("azure", server=metadata.place):
            wait_for(lambda: len(metadata.asked) > 2, "it to be asked")
            metadata.instead = (200, json.dumps({"Events": [event("Freeze", "trainer_0")]}).encode())
            asked = len(metadata.asked)
            wait_for(lambda: len(metadata.asked) > asked + 5, "it to be asked")
        assert heard.complaints == ["Azure is going to freeze this machine"]
        assert heard.notices == []


def test_an_agent_whose_machine_is_going_lets_its_workers_leave(tmp_path: Path) -> None:
    going = tmp_path / "going"
    with Launched(tmp_path, "--workers", "1:1", "--notice", f"file:{going}", str(TRAINER), "go") as run:
        (member,) = run.has_members(1)
        run.sees(f"{member} joined")
        going.write_text("20\nrack 4 is switched off")
        run.sees("rack 4 is switched off: the workers leave within 20 s")
        run.ended()
    assert f"[pliant] {member} left" in run.output
    assert family(tmp_path) == {}
