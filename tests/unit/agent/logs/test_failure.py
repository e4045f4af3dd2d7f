"""The reason of a failure, from the output of real interpreters and from torchelastic's error files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.agent.logs.failure import ERROR_FILE_MAX, Failure, describe_failure, how, read_failure

NOISE = [b"epoch %d: loss 0.5" % number for number in range(50)]


def written(folder: Path, source: str, *options: str) -> list[bytes]:
    """Return what Python really writes when it runs this."""
    script = folder / "script.py"
    script.write_text(source)
    done = subprocess.run(
        [sys.executable, *options, str(script)], capture_output=True, timeout=60, check=False, env={**os.environ}
    )
    assert done.returncode != 0
    return (done.stdout + done.stderr).splitlines()


def found(tail: list[bytes]) -> Failure:
    result = read_failure(None, tail)
    assert result is not None
    return result


def test_a_traceback_is_found_whole_behind_other_lines(tmp_path: Path) -> None:
    lines = written(
        tmp_path, "def inner():\n    raise ValueError('too\\n  many\\nlines')\n\ndef outer():\n    inner()\n\nouter()\n"
    )
    result = found([*NOISE, *lines])
    assert result.message == "ValueError: too"
    assert result.traceback == b"\n".join(lines).decode()
    assert result.traceback.startswith("Traceback (most recent call last):\n  File ")
    assert result.at is None


@pytest.mark.parametrize("link", ["from error", ""])
def test_chained_exceptions_are_all_there(tmp_path: Path, link: str) -> None:
    source = f"""
try:
    try:
        raise KeyError("first")
    except KeyError as error:
        raise ValueError("second") {link}
except ValueError as error:
    raise RuntimeError("third") {link}
"""
    lines = written(tmp_path, source)
    result = found([*NOISE, *lines])
    assert result.message == "RuntimeError: third"
    assert result.traceback.splitlines() == [line.decode() for line in lines]
    assert result.traceback.count("Traceback (most recent call last):") == 3


def test_an_earlier_traceback_that_was_survived_is_left_out(tmp_path: Path) -> None:
    source = """
import traceback
try:
    raise KeyError("survived")
except KeyError:
    traceback.print_exc()
print("\\ngoing on", flush=True)
raise OSError("fatal")
"""
    result = found(written(tmp_path, source, "-u"))
    assert result.message == "OSError: fatal"
    assert "survived" not in result.traceback


def test_a_syntax_error_of_the_script_has_no_header(tmp_path: Path) -> None:
    lines = written(tmp_path, "x = 1\nprint('hello'\n")
    assert b"Traceback" not in b"".join(lines)
    result = found([*NOISE, *lines])
    assert result.message == "SyntaxError: '(' was never closed"
    assert result.traceback == b"\n".join(lines).decode()
    assert result.traceback.lstrip().startswith("File ")


def test_a_wrong_indentation_is_a_syntax_error_too(tmp_path: Path) -> None:
    result = found(written(tmp_path, "if True:\nprint(1)\n"))
    assert result.message.startswith("IndentationError: expected an indented block")
    assert "line 2\n    print(1)\n" in result.traceback


def test_a_syntax_error_of_an_imported_file_keeps_the_way_to_it(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def f(:\n")
    result = found(written(tmp_path, "import broken\n"))
    assert result.message.startswith("SyntaxError: ")
    assert result.traceback.startswith("Traceback (most recent call last):")
    assert "import broken" in result.traceback


def test_a_group_of_exceptions_is_there_with_its_members(tmp_path: Path) -> None:
    lines = written(tmp_path, "raise ExceptionGroup('several', [ValueError('one'), KeyError('two')])\n")
    result = found([*NOISE, *lines])
    assert result.message == "ExceptionGroup: several (2 sub-exceptions)"
    assert "ValueError: one" in result.traceback
    assert "KeyError: 'two'" in result.traceback
    assert "epoch" not in result.traceback


def test_a_group_whose_members_were_raised_is_one_block(tmp_path: Path) -> None:
    source = """
found = []
for kind in (ValueError, KeyError):
    try:
        raise kind("member")
    except kind as error:
        found.append(error)
raise ExceptionGroup("several", found)
"""
    lines = written(tmp_path, source)
    result = found([*NOISE, *lines])
    assert result.message == "ExceptionGroup: several (2 sub-exceptions)"
    assert result.traceback.splitlines() == [line.decode() for line in lines]


def test_a_crash_of_the_interpreter_is_told(tmp_path: Path) -> None:
    source = "import ctypes, faulthandler\nfaulthandler.enable()\nctypes.string_at(0)\n"
    result = found([*NOISE, *written(tmp_path, source)])
    assert result.message == "Fatal Python error: Segmentation fault"
    assert "script.py" in result.traceback


def test_what_torch_writes_before_each_line_is_taken_away() -> None:
    """Its excepthook does so as soon as there is a process group."""
    lines = [
        "[rank0]: Traceback (most recent call last):",
        '[rank0]:   File "train.py", line 3, in <module>',
        "[rank0]:     step()",
        "[rank0]: KeyError: 'a'",
        "[rank0]: ",
        "[rank0]: During handling of the above exception, another exception occurred:",
        "[rank0]: ",
        "[rank0]: Traceback (most recent call last):",
        '[rank0]:   File "train.py", line 5, in <module>',
        "[rank0]:     raise RuntimeError('b')",
        "[rank0]: RuntimeError: b",
    ]
    result = found([*NOISE, *(line.encode() for line in lines), b"W1115 ProcessGroupGloo was not destroyed"])
    assert result.message == "RuntimeError: b"
    assert [line.removeprefix("[rank0]: ") for line in lines] == result.traceback.splitlines()[: len(lines)]


def test_a_data_workers_traceback_belongs_to_the_exception_that_carries_it() -> None:
    lines = [
        b"Traceback (most recent call last):",
        b'  File "train.py", line 9, in <module>',
        b"    for batch in loader:",
        b"RuntimeError: Caught ValueError in DataLoader worker process 0.",
        b"Original Traceback (most recent call last):",
        b'  File "fetch.py", line 1, in fetch',
        b"    raise ValueError('bad sample')",
        b"ValueError: bad sample",
    ]
    result = found([*NOISE, *lines])
    assert result.message == "RuntimeError: Caught ValueError in DataLoader worker process 0."
    assert result.traceback == b"\n".join(lines).decode()


def test_what_goes_wrong_on_the_way_out_is_not_the_reason() -> None:
    lines = [
        b"Traceback (most recent call last):",
        b'  File "train.py", line 9, in <module>',
        b"    train()",
        b"RuntimeError: the reason",
        b"Exception ignored in: <function Pool.__del__ at 0x7f>",
        b"Traceback (most recent call last):",
        b'  File "pool.py", line 1, in __del__',
        b"    self.close()",
        b"AttributeError: nothing",
    ]
    assert found(lines).message == "RuntimeError: the reason"
    assert found(lines[4:]).message == "AttributeError: nothing"


def test_a_text_of_several_paragraphs_is_kept_and_a_log_that_goes_on_is_not() -> None:
    lines = [b"Traceback (most recent call last):", b'  File "a.py", line 1, in f', b"X: one", b"", b"two", b"\tthree"]
    assert found(lines).traceback.endswith("X: one\n\ntwo\n\tthree")
    assert found([*lines, b"", *NOISE]).traceback.endswith("X: one")


def test_without_a_traceback_the_last_lines_are_told() -> None:
    result = found([*NOISE, b"/bin/x: cannot be started: No such file or directory", b""])
    assert result.message == "/bin/x: cannot be started: No such file or directory"
    assert result.traceback.splitlines()[0] == "epoch 31: loss 0.5"


@pytest.mark.parametrize("tail", [[], [b""], [b"", b"  "]])
def test_one_that_said_nothing_has_no_failure_to_show(tail: list[bytes], tmp_path: Path) -> None:
    assert read_failure(tmp_path / "none.json", tail) is None


def test_nothing_of_it_steers_a_terminal() -> None:
    lines = [
        b"\x1b[31mTraceback (most recent call last):\x1b[0m",
        b'  File "a.py", line 1',
        b"10%\rX: \x1b]0;title\x07\x00",
    ]
    result = found(lines)
    assert result.message == "X: \\x1b]0;title\\x07\\x00"
    assert result.traceback.startswith("Traceback (most")


# -------------------------------------------------------------------------------------------------------- error files


def test_torchelastics_own_record_is_understood(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "error.json"
    source = """
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    raise ValueError("recorded")

main()
"""
    script = tmp_path / "script.py"
    script.write_text(source)
    env = {**os.environ, "TORCHELASTIC_ERROR_FILE": str(path)}
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, timeout=100, check=False)
    assert done.returncode == 1
    result = read_failure(path, [b"Traceback (most recent call last):", b"Other: x"])
    assert result is not None
    assert result.message == "ValueError: recorded"
    assert 'raise ValueError("recorded")' in result.traceback
    assert result.at is not None
    assert result.at > 1.7e9


def test_a_record_that_is_text_beside_its_time_is_understood(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text(json.dumps({"message": "out of\nluck", "timestamp": 12}))
    tail = [b"Traceback (most recent call last):", b'  File "a.py", line 1, in f', b"X: y"]
    result = read_failure(path, tail)
    assert result == Failure("out of luck", b"\n".join(tail).decode(), 12.0)
    assert read_failure(path, []) == Failure("out of luck", "", 12.0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"message": {"mess', "it is no JSON"),
        ("[" * 100_000, "it is no JSON"),
        ("[]", "it is not in torchelastic's format"),
        ("3", "it is not in torchelastic's format"),
        ('{"message": {"message": 3}}', "it is not in torchelastic's format"),
        ('{"message": {"message": "x", "extraInfo": {"py_callstack": 3}}}', "it is not in torchelastic's format"),
        ('{"note": "x"}', "it is not in torchelastic's format"),
        ("\xff", "it is no JSON"),
        ("x" * (ERROR_FILE_MAX + 1), f"it is larger than {ERROR_FILE_MAX} bytes"),
    ],
    ids=range(9),
)
def test_a_record_that_cannot_be_read_is_said_and_the_tail_is_taken(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "error.json"
    path.write_text(text, encoding="latin-1")
    note = f"(What it left in {path} cannot be read: {why}.)"
    assert read_failure(path, [b"last words"]) == Failure("last words", f"last words\n{note}")
    assert read_failure(path, []) == Failure(" ".join(note.split()), note)


def test_a_record_without_its_time_or_text_is_good_enough(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text('{"message": {"message": "x", "extraInfo": {"timestamp": "soon"}}}')
    assert read_failure(path, []) == Failure("x", "", None)
    path.write_text("")
    assert read_failure(path, []) is None
    path.unlink()
    path.mkdir()
    result = read_failure(path, [b"last"])
    assert result is not None
    assert "Is a directory" in result.traceback
    os.mkfifo(tmp_path / "pipe")
    assert read_failure(tmp_path / "pipe", []) is None


# -------------------------------------------------------------------------------------------------------- what is told


def test_the_block_names_who_where_how_and_everything_it_said() -> None:
    text = describe_failure(
        Failure("ValueError: x", "Traceback (most recent call last):\n  File\nValueError: x"),
        member="vm-g3.0",
        rank=2,
        host="vm",
        pid=4711,
        code=1,
        log=Path("logs/vm-g3.0.log"),
    )
    assert text.splitlines() == [
        "rank 2 (vm-g3.0), process 4711 on vm, failed with exit code 1: ValueError: x",
        "    Traceback (most recent call last):",
        "      File",
        "    ValueError: x",
        "Its output is in logs/vm-g3.0.log",
    ]


def test_one_that_was_killed_without_a_word_is_told_in_a_line() -> None:
    text = describe_failure(None, member="vm-2.1", rank=None, host="vm", pid=None, code=-9)
    assert text == "vm-2.1, on vm, failed with signal 9 (SIGKILL) and wrote nothing."
    assert how(-200) == "signal 200"


PIECES = st.sampled_from(
    [
        b"Traceback (most recent call last):",
        b"[rank0]: Traceback (most recent call last):",
        b"  + Exception Group Traceback (most recent call last):",
        b"Original Traceback (most recent call last):",
        b'  File "a.py", line 1',
        b"    | x",
        b"    code()",
        b"",
        b"During handling of the above exception, another exception occurred:",
        b"SyntaxError: x",
        b"ValueError: x",
        b"Fatal Python error: Aborted",
        b"Exception ignored in: x",
        b"[rank0]: ",
        b"\xff\x1b[0m\r",
    ]
)


@given(st.lists(PIECES | st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")), max_size=40))
def test_whatever_was_written_something_is_said_of_it(tail: list[bytes]) -> None:
    result = read_failure(None, tail)
    if result is None:
        assert not any(line.isalnum() for line in tail)
        return
    assert result.message
    assert "\n" not in result.message
    assert all(sign.isprintable() or sign in "\n\t" for sign in result.traceback)


@pytest.mark.parametrize("message", ["bdb.BdbQuit", "EOFError: EOF when reading a line"])
def test_a_script_that_waits_for_input_gets_a_hint(message: str) -> None:
    lines = ("Traceback (most recent call last):", '  File "train.py", line 3, in <module>', "    input()", message)
    found = read_failure(None, [line.encode() for line in lines])
    text = describe_failure(found, member="vm-2.1", rank=None, host="vm", pid=None, code=1)
    assert text.endswith(
        "\nWorkers have no standard input, so pdb and input() end at once. "
        "To debug the script, run it alone: python SCRIPT [ARGS]."
    )
    other = Failure("EOFError: Ran out of input", "EOFError: Ran out of input")
    assert "standard input" not in describe_failure(other, member="vm-2.1", rank=None, host="vm", pid=None, code=1)
