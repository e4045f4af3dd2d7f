import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from unit.cli.program import PLIANT, Done, Running, coordinator, free_port, invoke

Pliant = Callable[..., Done]


def follow(running: Running, job: str, *args: str) -> "subprocess.Popen[str]":
    command = [PLIANT, "events", job, "--follow", *args]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=running.env(), start_new_session=True
    )


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_events_have_a_time_a_revision_and_a_sentence(pliant: Pliant) -> None:
    pliant("jobs", "create", "told", "--workers", "2:4")
    pliant("resize", "told", "3")
    first, second, third = pliant("events", "told").out.splitlines()
    date, time, revision, sentence = first.split(maxsplit=3)
    assert (len(date), len(time), revision) == (10, 8, "1")
    assert sentence == "job told created: 2 to 4 workers, 4 wanted"
    assert second.endswith("      2  the job is waiting: 0 of the 2 workers needed")
    assert pliant("events", "told", "--after", "2").out == third + "\n"
    assert pliant("events", "told", "--after", "3").out == ""


def test_json_events_are_lines_with_their_revision(pliant: Pliant) -> None:
    pliant("jobs", "create", "lines", "--workers", "2:4")
    found = [json.loads(text) for text in pliant("events", "lines", "--json").out.splitlines()]
    assert [(each["revision"], each["event"]["type"]) for each in found] == [(1, "JobCreated"), (2, "StateChanged")]


def test_following_shows_what_happens_and_ends_with_the_job(running: Running, pliant: Pliant) -> None:
    pliant("jobs", "create", "live", "--workers", "2:4")
    with follow(running, "live", "--json") as process:
        assert [json.loads(line(process))["revision"] for _ in range(2)] == [1, 2]
        pliant("resize", "live", "3")
        assert json.loads(line(process))["event"]["type"] == "TargetChanged"
        pliant("cancel", "live")
        out, err = process.communicate(timeout=20)
    assert json.loads(out)["event"]["state"] == "cancelled"
    assert (process.returncode, err) == (0, "")


def test_following_a_job_that_has_ended_ends_at_once(pliant: Pliant) -> None:
    pliant("jobs", "create", "past", "--workers", "2:4")
    pliant("cancel", "past")
    assert len(pliant("events", "past", "--follow").out.splitlines()) == 3
    assert pliant("events", "past", "--follow", "--after", "3").out == ""
    assert pliant("events", "past", "--follow", "--after", "99").out == ""


def test_ctrl_c_ends_a_follow_without_a_trace(running: Running, pliant: Pliant) -> None:
    pliant("jobs", "create", "stopped", "--workers", "2:4")
    with follow(running, "stopped") as process:
        assert "job stopped created" in line(process)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err.strip() == ""


def test_a_reader_that_has_seen_enough_is_not_complained_about(running: Running, pliant: Pliant) -> None:
    pliant("jobs", "create", "piped", "--workers", "2:8")
    with follow(running, "piped") as process:
        assert "job piped created" in line(process)
        assert process.stdout is not None
        process.stdout.close()
        pliant("resize", "piped", "3")
        pliant("resize", "piped", "4")
        process.wait(20)
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_follow_goes_on_after_a_restart_and_says_that_it_waited(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'store.db'}"
    with coordinator(tmp_path, "--store", store, "--listen", f"127.0.0.1:{free_port()}") as first:
        place = ("--coordinator", first.url, "--token-file", str(first.token_file))
        assert invoke("jobs", "create", "kept", "--workers", "2:4", *place).code == 0
        with follow(first, "kept") as process:
            assert "job kept created" in line(process)
            assert "the job is waiting" in line(process)
            first.process.kill()
            first.process.wait()
            assert process.stderr is not None
            assert "Waiting for it." in process.stderr.readline()
            with coordinator(tmp_path, "--store", store, "--listen", first.url.removeprefix("http://")) as second:
                assert (second.ready["identity"], second.ready["jobs"]) == (first.ready["identity"], 1)
                assert process.stderr.readline() == "pliant: The coordinator answers again.\n"
                assert invoke("cancel", "kept", *place).code == 0
                out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")
    assert out.endswith("  3  the job was cancelled: requested with pliant cancel\n")


def test_a_follow_does_not_go_on_with_another_store(tmp_path: Path) -> None:
    with coordinator(tmp_path, "--listen", f"127.0.0.1:{free_port()}") as first:
        place = ("--coordinator", first.url, "--token-file", str(first.token_file))
        assert invoke("jobs", "create", "kept", "--workers", "2:4", *place).code == 0
        with follow(first, "kept") as process:
            assert "job kept created" in line(process)
            first.process.kill()
            first.process.wait()
            assert process.stderr is not None
            assert "Waiting for it." in process.stderr.readline()
            with coordinator(tmp_path, "--listen", first.url.removeprefix("http://")):
                _, err = process.communicate(timeout=20)
    assert process.returncode == 3
    assert "another store" in err
