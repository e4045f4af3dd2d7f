"""Tokens and their files: what is shown, who may read them, and what happens when two want to write."""

import errno
import grp
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from pliant import private_files
from pliant.credentials import (
    Token,
    check_ownership,
    is_missing,
    make_token,
    parse_token,
    read_or_create_token,
    read_token,
    write_token,
)
from pliant.errors import BadInput
from unit.stores.disk import OTHER_USER, as_other_user, file_limit


@pytest.fixture
def no_umask() -> Iterator[None]:
    """Nothing is taken from a new file's mode."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "token"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# ---------------------------------------------------------------------------------------------------- the token


def test_a_token_reads_back_from_its_text() -> None:
    token = make_token()
    assert parse_token(token.text) == token
    assert token.text == f"pliant_{token.id}_{token.secret}"


def test_no_two_tokens_are_the_same_and_a_secret_has_256_bits() -> None:
    tokens = [make_token() for _ in range(100)]
    assert len({token.secret for token in tokens}) == len({token.id for token in tokens}) == 100
    assert all(len(token.secret) == 43 for token in tokens)  # of 6 bits each, the last with 4


def test_a_secret_shows_in_no_repr() -> None:
    token = make_token()
    for shown in (repr(token), str(token), f"{token}", f"{[token]!r}", f"{(token,)}"):
        assert token.secret not in shown
        assert token.id in shown


def test_the_digest_does_not_have_the_secret() -> None:
    token = make_token()
    assert len(token.digest) == 64
    assert token.secret not in token.digest
    assert token.digest == Token("another id", token.secret).digest


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pliant",
        "pliant_0123456789ab_short",
        "pliant_0123456789AB_" + "x" * 43,
        "pliant_0123456789ab_" + "x" * 44,
        "pliant_0123456789ab_" + "x" * 42 + "é",
        " pliant_0123456789ab_" + "x" * 43,
        "pliant_0123456789ab_" + "x" * 43 + "\n",
        "other_0123456789ab_" + "x" * 43,
    ],
)
def test_what_has_another_form_is_no_token(text: str) -> None:
    assert parse_token(text) is None


# ------------------------------------------------------------------------------------------------------ reading


def test_a_token_comes_back_from_its_file(path: Path) -> None:
    path.parent.mkdir()
    token = make_token()
    write_token(path, token)
    assert read_token(path) == token


@pytest.mark.parametrize("others", [0o640, 0o604, 0o620, 0o666, 0o610, 0o601])
def test_a_file_that_others_may_open_is_refused_with_what_to_do(path: Path, others: int) -> None:
    read_or_create_token(path)
    path.chmod(others)
    with pytest.raises(BadInput, match=rf"mode {others:04o}.*chmod 600"):
        read_token(path)
    with pytest.raises(BadInput, match="chmod 600"):
        read_or_create_token(path)


POD_GROUP = 424242  # as an fsGroup: without a name


def as_pod(monkeypatch: pytest.MonkeyPatch, *groups: int) -> None:
    monkeypatch.setattr("pliant.credentials.os.getgroups", lambda: list(groups))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another group")
def test_the_file_of_a_secret_is_read_by_a_pod_in_its_group_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token, _ = read_or_create_token(path)
    os.chown(path, 0, POD_GROUP)
    path.chmod(0o440)
    with pytest.raises(BadInput, match="mode 0440"):
        read_token(path)
    as_pod(monkeypatch, POD_GROUP)
    assert read_token(path) == token
    for wider in (0o444, 0o441):
        path.chmod(wider)
        with pytest.raises(BadInput, match=rf"mode {wider:04o}"):
            read_token(path)
    os.chown(path, 0, 1)  # a group with a name: 0440 is what Kubernetes sets, and nothing wider
    as_pod(monkeypatch, 1)
    path.chmod(0o440)
    assert read_token(path) == token
    path.chmod(0o460)
    with pytest.raises(BadInput, match="mode 0460"):
        read_token(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another group")
def test_a_home_on_a_volume_belongs_to_the_group_of_its_pod(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token, _ = read_or_create_token(path)
    for each, mode in ((path.parent, 0o2770), (path, 0o660)):  # as the kubelet sets them at every mount
        os.chown(each, 0, POD_GROUP)
        each.chmod(mode)
    with pytest.raises(BadInput, match="Other users can write"):
        check_ownership(path.parent, "PLIANT_HOME")
    as_pod(monkeypatch, POD_GROUP)
    check_ownership(path.parent, "PLIANT_HOME")
    check_ownership(path, "The token")
    assert read_or_create_token(path) == (token, False)
    path.chmod(0o662)
    with pytest.raises(BadInput, match="Other users can write"):
        check_ownership(path, "The token")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another group")
@pytest.mark.parametrize("gid", [0, 1])
def test_a_group_with_other_users_may_write_no_home(path: Path, monkeypatch: pytest.MonkeyPatch, gid: int) -> None:
    path.parent.mkdir()
    os.chown(path.parent, 0, gid)
    path.parent.chmod(0o770)
    as_pod(monkeypatch, gid)
    with pytest.raises(BadInput, match="Other users can write"):
        check_ownership(path.parent, "PLIANT_HOME")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another group")
def test_the_group_that_has_the_users_name_is_private(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.parent.mkdir()
    os.chown(path.parent, 0, POD_GROUP)
    path.parent.chmod(0o770)
    as_pod(monkeypatch, POD_GROUP)
    for name, others, private in (("root", [], True), ("root", ["eve"], False), ("staff", [], False)):
        group = grp.struct_group((name, "x", POD_GROUP, others))
        monkeypatch.setattr("pliant.credentials.grp.getgrgid", lambda _, group=group: group)
        with nullcontext() if private else pytest.raises(BadInput, match="Other users can write"):
            check_ownership(path.parent, "PLIANT_HOME")


@pytest.mark.parametrize("own", [0o400, 0o600, 0o700])
def test_a_file_that_its_owner_alone_may_open_is_read(path: Path, own: int) -> None:
    token, _ = read_or_create_token(path)
    path.chmod(own)
    assert read_token(path) == token


def test_a_file_of_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_or_create_token(path)
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
    else:
        monkeypatch.setattr("pliant.credentials.os.geteuid", lambda: os.getuid() + 1)
    with pytest.raises(BadInput, match="another user"):
        read_token(path)


@pytest.mark.parametrize("text", [b"", b"\n", b"hello", b"\xff\xfe\x00", b"pliant_x_y", b"pliant_" * 10_000])
def test_what_is_no_token_is_refused_without_being_shown(path: Path, text: bytes) -> None:
    read_or_create_token(path)
    path.write_bytes(text)
    with pytest.raises(BadInput, match="are not a token") as refused:
        read_token(path)
    assert "hello" not in refused.value.why


def test_a_missing_file_and_one_that_cannot_be_read_are_told_apart(path: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        read_token(path)
    with pytest.raises(BadInput, match="cannot be read"):
        read_token(tmp_path)


# ------------------------------------------------------------------------------------------------------ writing


@pytest.mark.usefixtures("no_umask")
def test_a_token_is_its_owners_alone_whatever_the_umask(path: Path) -> None:
    token, is_new = read_or_create_token(path)
    assert is_new
    assert mode(path) == 0o600
    assert mode(path.parent) == 0o700
    write_token(path, token)
    assert mode(path) == 0o600


def test_the_second_start_finds_the_token_of_the_first(path: Path) -> None:
    token, _ = read_or_create_token(path)
    assert read_or_create_token(path) == (token, False)
    assert [each.name for each in path.parent.iterdir()] == ["token"]


def test_a_file_is_replaced_at_once_or_not_at_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, _ = read_or_create_token(path)
    seen: list[Token] = []

    def look(self: Path, target: Path) -> None:
        seen.append(read_token(target))
        assert mode(self) == 0o600
        os.rename(self, target)  # noqa: PTH104  # what stands in for Path.replace cannot call it

    monkeypatch.setattr(Path, "replace", look)
    new = make_token()
    write_token(path, new)
    assert seen == [old]  # whole until the very moment
    assert read_token(path) == new
    assert [each.name for each in path.parent.iterdir()] == ["token"]


def test_a_reader_of_the_old_file_keeps_the_old_token(path: Path) -> None:
    old, _ = read_or_create_token(path)
    with path.open() as file:
        write_token(path, make_token())
        assert file.read().strip() == old.text


def test_who_was_slower_takes_the_token_of_who_was_quicker(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quicker = make_token()
    create = private_files.create_file

    def late(new: Path, data: bytes, mode: int) -> None:
        create(new, data, mode)
        if not path.exists():
            create(path, quicker.text.encode())

    monkeypatch.setattr(private_files, "create_file", late)
    assert read_or_create_token(path) == (quicker, False)
    assert [each.name for each in path.parent.iterdir()] == ["token"]


PROGRAM = """
import sys
from pathlib import Path
from pliant.credentials import read_or_create_token
sys.stdin.readline()
token, is_new = read_or_create_token(Path(sys.argv[1]))
print(token.id, is_new)
"""


def test_processes_that_start_at_once_agree_on_one_token(path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(path)]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for each in started:
        assert each.stdin is not None
        each.stdin.write("now\n")
        each.stdin.flush()
    said = [each.communicate(timeout=60)[0].split() for each in started]
    assert {id_ for id_, _ in said} == {read_token(path).id}
    assert [is_new for _, is_new in said].count("True") == 1
    assert [each.name for each in path.parent.iterdir()] == ["token"]


def test_a_place_that_cannot_be_written_is_a_sentence_not_a_stack(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot be written"):
        read_or_create_token(tmp_path / "file" / "home" / "token")
    with pytest.raises(BadInput, match="cannot be written"):
        write_token(tmp_path / "nowhere" / "token", make_token())


def refusing(number: int) -> Callable[..., None]:
    """Return what stands in for a call that the system does not grant."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize("write", [read_or_create_token, lambda path: write_token(path, make_token())])
def test_a_full_disk_is_a_sentence_and_leaves_nothing_behind(path: Path, write: Callable[[Path], object]) -> None:
    path.parent.mkdir()
    with file_limit(0), pytest.raises(BadInput, match=r"cannot be written to .*: File too large"):
        write(path)
    assert list(path.parent.iterdir()) == []


def test_a_failed_flush_is_a_sentence_and_leaves_what_was_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, _ = read_or_create_token(path)
    monkeypatch.setattr(os, "fsync", refusing(errno.ENOSPC))
    with pytest.raises(BadInput, match="No space left"):
        write_token(path, make_token())
    assert read_token(path) == old
    with pytest.raises(BadInput, match="No space left"):
        read_or_create_token(path.with_name("other"))
    assert [each.name for each in path.parent.iterdir()] == ["token"]


def test_a_name_that_is_not_granted_is_a_sentence_and_leaves_nothing_behind(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.mkdir(parents=True)
    with pytest.raises(BadInput, match=r"cannot be written to .*: Is a directory"):
        write_token(path, make_token())
    path.rmdir()
    monkeypatch.setattr(os, "link", refusing(errno.EPERM))
    monkeypatch.setattr(Path, "replace", refusing(errno.EROFS))
    with pytest.raises(BadInput, match=r"cannot be written to .*: Read-only"):
        read_or_create_token(path)
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_hard_links_will_do(path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(os, "link", refusing(number))
    token, is_new = read_or_create_token(path)
    assert is_new
    assert read_or_create_token(path) == (token, False)
    assert mode(path) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["token"]


def test_without_hard_links_who_was_slower_takes_the_token_of_who_was_quicker(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quicker = make_token()

    def late(*_: object) -> None:
        write_token(path, quicker)
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", late)
    assert read_or_create_token(path) == (quicker, False)
    assert [each.name for each in path.parent.iterdir()] == ["token"]


# ------------------------------------------------------------------------------------------------ whose it is


@pytest.fixture
def locked() -> Iterator[Path]:
    """A directory that we may not look into."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0)
        with as_other_user():
            yield Path(folder)
        Path(folder).chmod(0o700)


def test_a_home_that_we_may_not_look_into_is_a_sentence(locked: Path) -> None:
    assert not is_missing(locked / "token")
    with pytest.raises(BadInput, match="cannot be read: Permission denied"):
        read_or_create_token(locked / "token")


def test_what_is_ours_and_what_is_not_there_yet_is_trusted(tmp_path: Path) -> None:
    for right in (0o700, 0o755, 0o500):
        tmp_path.chmod(right)
        check_ownership(tmp_path, "PLIANT_HOME")
    tmp_path.chmod(0o700)
    check_ownership(tmp_path / "store.db", "The store")


@pytest.mark.parametrize("others", [0o720, 0o702, 0o777, 0o1777])
def test_what_others_may_write_is_not_trusted(tmp_path: Path, others: int) -> None:
    file, folder = tmp_path / "store.db", tmp_path / "home"
    file.touch()
    folder.mkdir()
    for path, right in ((file, 600), (folder, 700)):
        path.chmod(others)
        with pytest.raises(BadInput, match=rf"PLIANT_HOME {path} .*mode {others:04o}.*: chmod {right} {path}$"):
            check_ownership(path, "PLIANT_HOME")


def test_what_is_another_user_s_is_not_trusted_and_root_s_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, link = tmp_path / "store.db", tmp_path / "link"
    path.touch()
    if os.geteuid() == 0:
        os.chown(path, OTHER_USER, OTHER_USER)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(BadInput, match=r"The store .* belongs to another user \(uid \d+\).*Use another path"):
        check_ownership(path, "The store")
    link.symlink_to("/usr")
    if os.geteuid() == 0:
        os.lchown(link, OTHER_USER, OTHER_USER)
    with pytest.raises(BadInput, match="another user"):
        check_ownership(link, "PLIANT_HOME")  # they could make it lead elsewhere
    check_ownership(Path("/usr"), "PLIANT_HOME")
