"""`pliant certs`: files with tight modes, nothing overwritten, and errors that say what to do."""

import ssl
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pliant.credentials import TlsFiles
from pliant.tls import client_context
from unit.cli.program import invoke

DAY_S = 86400.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLIANT_HOME", str(tmp_path / "home"))
    assert invoke("certs", "init").code == 0
    return tmp_path / "home"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_keys_are_for_their_owner_alone(home: Path) -> None:
    assert invoke("certs", "issue", "gpu-1").code == 0
    modes = {path.relative_to(home).as_posix(): mode(path) for path in home.rglob("*")}
    assert modes == {
        "ca": 0o700,
        "ca/ca.key": 0o600,
        "ca/ca.pem": 0o644,
        "certs": 0o700,
        "certs/gpu-1.key": 0o600,
        "certs/gpu-1.pem": 0o644,
    }


def test_a_certificate_has_the_names_that_were_asked_for_and_ends_after_a_year(home: Path) -> None:
    hosts = ("--dns", "c.example.org", "--dns", "*.example.org", "--ip", "10.0.0.5", "--ip", "::1")
    made = invoke("certs", "issue", "coordinator", *hosts, "--json").json
    assert made["dns"] == ["c.example.org", "*.example.org"]
    assert made["ip"] == ["10.0.0.5", "::1"]
    assert 364.9 * DAY_S < made["ends_at"] - time.time() <= 365 * DAY_S
    text = subprocess.run(
        ["openssl", "x509", "-noout", "-text", "-in", made["cert_file"]], capture_output=True, text=True, check=True
    ).stdout
    assert "URI:pliant:coordinator" in text
    assert "TLS Web Client Authentication, TLS Web Server Authentication" in text
    assert "CA:FALSE" in text


def test_a_client_certificate_cannot_serve(home: Path) -> None:
    made = invoke("certs", "issue", "gpu-1", "--json").json
    checked = ["openssl", "verify", "-CAfile", str(home / "ca" / "ca.pem"), "-purpose"]
    for purpose, good in (("sslclient", True), ("sslserver", False)):
        done = subprocess.run([*checked, purpose, made["cert_file"]], capture_output=True, check=False)
        assert (done.returncode == 0) is good, purpose


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (
            ("init",),
            "ca.pem exists: there is a CA already, and every certificate of it would become invalid.",
        ),
        (("issue", "gpu-1"), "gpu-1.pem exists. Run `pliant certs renew gpu-1`, or choose another name."),
        (("issue", "../x"), "Invalid certificate name: a name has letters, digits, '-', '.' and '_'"),
        (("issue", "x", "--ip", "here"), "--ip must be an address, such as 10.0.0.5; got 'here'."),
        (
            ("issue", "x", "--dns", "10.0.0.5"),
            "--dns must be a host name, and 10.0.0.5 is an address.",
        ),
        (("issue", "x", "--dns", "a b"), "--dns must be a host name in ASCII, such as trainer.example.org; got 'a b'."),
        (("issue", "x", "--days", "0"), "A certificate can be valid for more than 0 and at most 36500 days; got 0."),
        (("renew", "gpu-9"), "There is no certificate gpu-9: "),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_reason(home: Path, args: tuple[str, ...], why: str) -> None:
    invoke("certs", "issue", "gpu-1")
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    done = invoke("certs", *args)
    assert (done.code, why in done.err) == (2, True), done.err
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before


def test_an_issue_that_was_interrupted_is_repeated(home: Path) -> None:
    made = invoke("certs", "issue", "gpu-1", "--json").json
    Path(made["cert_file"]).unlink()  # killed between the key and the certificate
    again = invoke("certs", "issue", "gpu-1", "--json")
    assert again.code == 0, again.err
    loaded = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    loaded.load_cert_chain(again.json["cert_file"], again.json["key_file"])


def test_without_a_ca_nothing_is_issued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLIANT_HOME", str(tmp_path))
    for args in (("issue", "gpu-1"), ("list",)):
        done = invoke("certs", *args)
        assert done.code == 2
        assert "There is no CA: " in done.err
        assert "Run `pliant certs init` first." in done.err


def test_a_renewed_certificate_has_the_same_names_and_lifetime_and_a_new_key(home: Path) -> None:
    first = invoke("certs", "issue", "coordinator", "--ip", "127.0.0.1", "--days", "10", "--json").json
    key = Path(first["key_file"]).read_bytes()
    (again,) = invoke("certs", "renew", "coordinator", "--json").json["renewed"]
    assert {name: again[name] for name in ("name", "dns", "ip")} == {
        "name": "coordinator",
        "dns": [],
        "ip": ["127.0.0.1"],
    }
    assert again["sha256"] != first["sha256"]
    assert abs((again["ends_at"] - again["begins_at"]) - (first["ends_at"] - first["begins_at"])) < 2
    assert Path(first["key_file"]).read_bytes() != key
    assert mode(Path(first["key_file"])) == 0o600
    client_context(TlsFiles(home / "ca" / "ca.pem", Path(again["cert_file"]), Path(again["key_file"])))


def test_renew_without_names_renews_what_is_old(home: Path) -> None:
    invoke("certs", "issue", "fresh")
    invoke("certs", "issue", "short", "--days", "0.0001")  # 9 s, and 5 minutes before now: nearly over
    assert [each["name"] for each in invoke("certs", "renew", "--json").json["renewed"]] == ["short"]


def test_a_certificate_never_outlives_its_ca(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLIANT_HOME", str(tmp_path / "short"))
    ca = invoke("certs", "init", "--days", "3", "--json").json
    assert invoke("certs", "issue", "gpu-1", "--json").json["ends_at"] == ca["ends_at"]


def test_the_list_shows_all_of_them_and_no_key(home: Path) -> None:
    invoke("certs", "issue", "coordinator", "--dns", "c.example.org")
    invoke("certs", "issue", "gpu-1")
    done = invoke("certs", "list")
    assert "a coordinator at c.example.org" in done.out
    assert "a client" in done.out
    found = invoke("certs", "list", "--json").json
    assert [each["name"] for each in found["certificates"]] == ["coordinator", "gpu-1"]
    assert "PRIVATE" not in done.out + invoke("certs", "list", "--json").out


def test_without_the_package_the_command_says_how_to_get_it(tmp_path: Path) -> None:
    code = "import sys; sys.modules['cryptography'] = None; from pliant.cli.main import main; main(['certs', 'init'])"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PLIANT_HOME": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == (
        "pliant: This needs the package cryptography, which is not installed. Run: pip install 'pliant[tls]'\n"
    )


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        ("ca missing", "The CA file {ca} cannot be read: No such file or directory."),
        ("ca nonsense", "The CA file {ca} has no certificate in PEM format."),
        ("ca writable", "Other users can write to The CA file {ca} (mode 0666)"),
        ("key readable", "Other users can read the key {key} (mode 0640). Run: chmod 600 {key}"),
        ("key alone", "PLIANT_CERT_FILE and PLIANT_KEY_FILE belong together. Set both, or neither."),
    ],
)
def test_files_that_cannot_be_used_are_named_with_the_reason(home: Path, spoil: str, why: str) -> None:
    invoke("certs", "issue", "gpu-1")
    ca, cert, key = home / "ca" / "ca.pem", home / "certs" / "gpu-1.pem", home / "certs" / "gpu-1.key"
    match spoil:
        case "ca missing":
            ca.unlink()
        case "ca nonsense":
            ca.write_text("nonsense")
        case "ca writable":
            ca.chmod(0o666)
        case "key readable":
            key.chmod(0o640)
        case _:
            pass
    files = TlsFiles(ca, None if spoil == "key alone" else cert, key)
    with pytest.raises(Exception, match=r".") as error:
        client_context(files)
    assert why.format(ca=ca, key=key) in str(error.value)
    assert not isinstance(error.value, ssl.SSLError)
