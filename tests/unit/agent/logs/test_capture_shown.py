"""A worker's output by torchrun's flags: shown, kept and copied lines, the remembered end, and both pipes."""

import os
from pathlib import Path

import pytest

from pliant.agent.logs.capture import (
    TAIL_BYTES,
    TAIL_LINES,
    LogOptions,
    OutputReader,
    OutputSink,
    OutputStream,
    StreamMask,
)
from pliant.errors import BadInput

OUT, ERR = OutputStream.OUT, OutputStream.ERR


def test_a_mask_is_one_number_or_one_for_each_local_rank() -> None:
    assert StreamMask.parse("3") == StreamMask(OutputStream.ALL)
    assert StreamMask.parse("0") == StreamMask()
    some = StreamMask.parse("1:2,0:1,12:3")
    assert some == StreamMask(by_rank=((0, OUT), (1, ERR), (12, OutputStream.ALL)))
    assert [(some.has(rank, OUT), some.has(rank, ERR)) for rank in (0, 1, 2, 12)] == [
        (True, False),
        (False, True),
        (False, False),
        (True, True),
    ]


@pytest.mark.parametrize("text", ["", "4", "-1", "12", "0:4", "a:1", "0:1,", "0:1,0:2", "1:", ":1", "\u00b2:1"])
def test_what_is_no_mask_is_refused_with_what_one_is(text: str) -> None:
    with pytest.raises(BadInput, match=r"does not say which streams|names a local rank twice"):
        StreamMask.parse(text)


@pytest.mark.parametrize(
    ("logs", "out", "err"),
    [
        (LogOptions(), True, True),
        (LogOptions(redirects=StreamMask.parse("1")), False, True),
        (LogOptions(redirects=StreamMask.parse("2")), True, False),
        (LogOptions(redirects=StreamMask.parse("3")), False, False),
        (LogOptions(tee=StreamMask.parse("3")), True, True),
        (LogOptions(redirects=StreamMask.parse("3"), tee=StreamMask.parse("2")), False, True),
        (LogOptions(redirects=StreamMask.parse("0:3")), False, False),
        (LogOptions(redirects=StreamMask.parse("1:3")), True, True),
        (LogOptions(shown=frozenset({0, 2})), True, True),
        (LogOptions(shown=frozenset({1})), False, False),
        (LogOptions(tee=StreamMask.parse("3"), shown=frozenset()), False, False),
    ],
    ids=str,
)
def test_what_local_rank_0_shows(logs: LogOptions, out: bool, err: bool) -> None:
    assert (logs.shows(0, OUT), logs.shows(0, ERR)) == (out, err)
    assert logs.files(0, OUT)
    assert logs.files(0, ERR)
    assert logs.needs_two_pipes(0) == (out or err)


def test_nothing_is_kept_in_the_folder_of_nothing(tmp_path: Path) -> None:
    logs = LogOptions(Path(os.devnull), stdout_filters=("x",))
    assert not logs.files(0, OUT)
    assert logs.filters(0, OUT) == ()
    shown: list[bytes] = []
    sink = logs.sink(tmp_path, "a", 0, shown.append, pytest.fail)
    sink.line(b"x")
    sink.end()
    assert (shown, sink.tail(), [*tmp_path.iterdir()]) == ([b"x"], (b"x",), [])


def test_lines_with_certain_words_are_copied_if_they_are_shown(tmp_path: Path) -> None:
    logs = LogOptions(stdout_filters=("loss", "ac,c"), stderr_filters=("loss",), shown=frozenset({0, 1}))
    assert logs.needs_two_pipes(0)
    assert not logs.needs_two_pipes(2)
    for rank, member in enumerate(("a", "b", "c")):
        sink = logs.sink(tmp_path, member, rank, lambda _: None, pytest.fail)
        assert sink.two_pipes == (rank < 2)
        sink.line(b"loss 1", OUT)
        sink.line(b"ac,c 2", OUT)
        sink.line(b"ac,c 3", ERR)
        sink.line(b"loss 4", ERR)
        sink.end()
    assert (tmp_path / "filtered_stdout.log").read_text() == "[a] loss 1\n[a] ac,c 2\n[b] loss 1\n[b] ac,c 2\n"
    assert (tmp_path / "filtered_stderr.log").read_text() == "[a] loss 4\n[b] loss 4\n"
    assert (tmp_path / "c.log").read_text() == "loss 1\nac,c 2\nac,c 3\nloss 4\n"


def test_logs_are_where_they_were_asked_for(tmp_path: Path) -> None:
    place, elsewhere = tmp_path / "made" / "for-it", tmp_path / "not-here"
    sink = LogOptions(place).sink(elsewhere, "a", 0, lambda _: None, pytest.fail)
    sink.line(b"x")
    assert not sink.wait(0.0)
    sink.end()
    assert sink.wait(0.0)
    assert (place / "a.log").read_text() == "x\n"
    assert LogOptions(place).path(elsewhere, "a") == place / "a.log"
    assert LogOptions().path(elsewhere, "a") == elsewhere / "a.log"
    assert LogOptions(Path(os.devnull)).path(elsewhere, "a") is None
    assert not elsewhere.exists()


def test_what_is_redirected_is_in_the_file_and_not_on_the_screen(tmp_path: Path) -> None:
    shown: list[bytes] = []
    sink = LogOptions(redirects=StreamMask(OUT)).sink(tmp_path, "a", 0, shown.append, pytest.fail)
    assert sink.two_pipes
    (out_read, out), (err_read, err) = os.pipe(), os.pipe()
    reader = OutputReader(out_read, sink, errors=err_read)
    os.write(out, b"out 1\nout")
    os.write(err, b"err 1\ner")
    os.close(err)
    os.write(out, b" 2\nout 3")
    os.close(out)
    reader.wait(20)
    assert not reader.reads
    assert shown == [b"err 1", b"er"]
    lines = (tmp_path / "a.log").read_text().splitlines()
    assert [line for line in lines if line.startswith("out")] == ["out 1", "out 2", "out 3"]
    assert [line for line in lines if line.startswith("er")] == ["err 1", "er"]
    assert sink.written == len(b"out 1\nout 2\nout 3err 1\ner")
    for handle in (out_read, err_read):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(handle)


def test_the_last_lines_are_remembered_and_not_more(tmp_path: Path) -> None:
    sink = OutputSink(None, lambda _: None, pytest.fail)
    for number in range(TAIL_LINES + 5):
        sink.line(b"%d" % number)
    assert sink.tail() == tuple(b"%d" % number for number in range(5, TAIL_LINES + 5))
    for _ in range(10):
        sink.line(b"x" * (TAIL_BYTES // 4))
    assert [len(line) for line in sink.tail()] == [TAIL_BYTES // 4] * 4


def test_bytes_count_before_their_line_is_whole() -> None:
    """A progress bar writes no end of line for minutes; its process is not stuck."""
    sink = OutputSink(None, lambda _: None, pytest.fail)
    reading, writing = os.pipe()
    reader = OutputReader(reading, sink)
    os.write(writing, b"10%\r20%")
    os.close(writing)
    reader.wait(20)
    assert sink.written == 7
    assert sink.tail() == (b"20%",)
