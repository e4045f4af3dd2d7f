"""TLS over real sockets: what is accepted, and that everything else is refused with its reason."""

import os
import shutil
import socket
import ssl
from datetime import timedelta
from pathlib import Path

import pytest

from e2e.authority import authority, for_loopback, shift, start_with_tls
from e2e.running import Running, start, token_of, wait_for
from pliant.certificates import Authority, CertificateInfo
from pliant.client import Client
from pliant.client.transport import TryAgain
from pliant.core.messages import Create
from pliant.core.model.job import JobSpec
from pliant.credentials import TlsFiles, Token
from pliant.errors import BadInput, NotAllowed, NotSecure, PliantError, Unreachable
from pliant.tls import LEAF_DAYS, client_context
from pliant.wire.api import Scope, TokenRequest

DAY = timedelta(days=1)
OWN = "Set PLIANT_CERT_FILE and PLIANT_KEY_FILE to a certificate of the CA that it trusts (`pliant certs issue NAME`)."


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return authority(tmp_path / "ours")


def trusting(made: Authority, own: CertificateInfo | None = None) -> TlsFiles:
    files = (None, None) if own is None else (Path(own.cert_file), Path(own.key_file))
    return TlsFiles(made.cert_file, *files)


def refused(running: Running, files: TlsFiles, token: Token | None = None, url: str = "") -> str:
    """Return the error of a client. Its patience is long, so that a test that has to wait for the error times out."""
    with (
        pytest.raises(PliantError) as error,
        Client([url or running.url], token or running.token, patience_s=3600.0, tls=files) as client,
    ):
        client.jobs()
    return f"{type(error.value).__name__}: {error.value.why}".replace(url or running.url, "URL")


def test_a_client_that_trusts_the_ca_is_served_and_the_url_is_https(tmp_path: Path, ours: Authority) -> None:
    with start_with_tls(tmp_path / "home", for_loopback(ours), trusting(ours)) as running:
        assert running.url.startswith("https://")
        assert running.client().jobs() == ()
        with Client([running.url.replace("127.0.0.1", "localhost")], running.token, tls=running.tls) as client:
            assert client.about().leads


def test_a_certificate_of_another_ca_is_refused(tmp_path: Path, ours: Authority) -> None:
    theirs = authority(tmp_path / "theirs")
    with start_with_tls(tmp_path / "home", for_loopback(theirs), trusting(ours)) as running:
        assert refused(running, running.tls) == (
            "NotSecure: No secure connection to URL: the coordinator's certificate is not accepted: it is not of the "
            "CA that is trusted here. Pass the right one with --ca-file or PLIANT_CA_FILE."
        )
        wait_for(lambda: "the client does not trust the CA of this coordinator's certificate" in running.log, "the log")
        with pytest.raises(NotSecure, match="it is not of the CA"), Client([running.url], running.token) as client:
            client.jobs()  # without a CA file the system's are asked


@pytest.mark.parametrize(
    ("begins", "ends", "why"),
    [
        (-2 * DAY, -DAY, "it has expired. Renew it with `pliant certs renew` on the CA's machine."),
        (DAY, 2 * DAY, "it is not valid yet. Compare the clocks of both machines."),
    ],
    ids=["expired", "early"],
)
def test_a_certificate_out_of_its_time_is_refused(
    tmp_path: Path, ours: Authority, begins: timedelta, ends: timedelta, why: str
) -> None:
    certificate = for_loopback(ours)
    shift(ours, certificate, begins, ends)
    with start_with_tls(tmp_path / "home", certificate, trusting(ours)) as running:
        assert refused(running, running.tls) == (
            f"NotSecure: No secure connection to URL: the coordinator's certificate is not accepted: {why}"
        )


def test_a_certificate_with_another_name_is_refused(tmp_path: Path, ours: Authority) -> None:
    certificate = ours.issue("elsewhere", ["elsewhere.example.org"], ["10.9.8.7"], LEAF_DAYS)
    with start_with_tls(tmp_path / "home", certificate, trusting(ours)) as running:
        assert refused(running, running.tls) == (
            "NotSecure: No secure connection to URL: the coordinator's certificate is not accepted: IP address "
            "mismatch, certificate is not valid for '127.0.0.1'. Use a name that is in it, or issue one with this "
            "name: `pliant certs issue`."
        )
        named = running.url.replace("127.0.0.1", "localhost")
        assert "Hostname mismatch, certificate is not valid for 'localhost'" in refused(running, running.tls, url=named)


def test_a_certificate_for_clients_does_not_serve_a_coordinator(tmp_path: Path, ours: Authority) -> None:
    certificate = ours.issue("gpu-1", [], [], LEAF_DAYS)
    with start_with_tls(tmp_path / "home", certificate, trusting(ours)) as running:
        assert refused(running, running.tls) == (
            "NotSecure: No secure connection to URL: the coordinator's certificate is not accepted: it is for clients "
            "only. Issue one for a coordinator: `pliant certs issue NAME --dns HOST --ip ADDRESS`."
        )


def test_with_a_ca_http_is_refused_before_anything_is_sent(ours: Authority) -> None:
    """Nothing listens there, so that only the refusal can be the reason."""
    with pytest.raises(BadInput) as error:
        Client(["https://127.0.0.1:9", "http://127.0.0.1:9"], Token("0" * 12, "x"), tls=trusting(ours))
    assert error.value.why == (
        f"http://127.0.0.1:9 is not encrypted, and the CA {ours.cert_file} is given, so only https is accepted. Use "
        "https://, or unset PLIANT_CA_FILE for a coordinator without TLS."
    )


def test_a_leader_that_a_standby_names_is_not_followed_to_http(tmp_path: Path, ours: Authority) -> None:
    store = f"sqlite:{tmp_path / 'store.db'}"
    with (
        start(store, home=tmp_path / "first") as leader,
        start_with_tls(tmp_path / "second", for_loopback(ours), trusting(ours), store=store) as standby,
    ):
        client = standby.client(patience_s=0.5)
        with pytest.raises(Unreachable, match=f"leads at {leader.url}"):
            client.send("demo", Create("demo", JobSpec(1, 2)))
        assert leader.client().jobs() == ()


def test_a_server_without_tls_is_refused_and_not_spoken_to(tmp_path: Path, ours: Authority) -> None:
    with start(home=tmp_path / "home") as running:
        url = running.url.replace("http:", "https:")
        assert refused(running, trusting(ours), url=url) == (
            "NotSecure: No secure connection to URL: the server there does not use TLS. Start the coordinator with "
            "--tls-cert and --tls-key."
        )


def test_a_client_without_tls_gets_nothing_of_a_coordinator_with_it(tmp_path: Path, ours: Authority) -> None:
    with start_with_tls(tmp_path / "home", for_loopback(ours), trusting(ours)) as running:
        plain = running.url.replace("https:", "http:")
        with pytest.raises(Unreachable), Client([plain], running.token, patience_s=0.0) as client:
            client.jobs()
        wait_for(lambda: "refused a connection: the client sent plain HTTP; it must use https://" in running.log, "it")


def test_a_revoked_token_is_refused_with_tls_too(tmp_path: Path, ours: Authority) -> None:
    with start_with_tls(tmp_path / "home", for_loopback(ours), trusting(ours)) as running:
        admin = running.client()
        made = admin.create_token(TokenRequest(Scope.READ))
        assert running.client(token_of(made.token)).jobs() == ()
        admin.expire_token(made.line.id)
        why = refused(running, running.tls, token_of(made.token))
        assert why == f"NotAllowed: Not allowed: token {made.line.id} has expired; ask for a new one."


def test_a_connection_without_a_handshake_is_closed_in_time(tmp_path: Path, ours: Authority) -> None:
    with start_with_tls(tmp_path / "home", for_loopback(ours), trusting(ours), head_time_s=0.3) as running:
        with socket.create_connection(("127.0.0.1", running.port), timeout=20.0) as silent:
            assert silent.recv(1) == b""
        with socket.create_connection(("127.0.0.1", running.port), timeout=20.0) as slow:
            slow.sendall(bytes.fromhex("1603010200"))  # a hello is announced, and does not come
            assert slow.recv(1) == b""
        assert running.client().jobs() == ()


# ------------------------------------------------------------------------------------------- client certificates


@pytest.fixture
def mutual(tmp_path: Path, ours: Authority) -> Running:
    """A coordinator that wants certificates of its clients; `tls` has that of admin."""
    admin = ours.issue("admin", [], [], LEAF_DAYS)
    files = trusting(ours, admin)
    return start_with_tls(tmp_path / "home", for_loopback(ours), files, client_ca=ours.cert_file)


def test_only_a_client_with_a_certificate_of_the_ca_is_served(tmp_path: Path, ours: Authority, mutual: Running) -> None:
    with mutual as running:
        assert running.client().jobs() == ()
        assert refused(running, trusting(ours)) == (
            f"NotSecure: No secure connection to URL: the coordinator requires a client certificate. {OWN}"
        )
        assert "refused a connection: the client has no certificate, and --tls-client-ca requires one" in running.log
        stranger = authority(tmp_path / "theirs").issue("admin", [], [], LEAF_DAYS)
        assert refused(running, trusting(ours, stranger)) == (
            "NotSecure: No secure connection to URL: the coordinator does not trust the CA of this client's "
            f"certificate. {OWN}"
        )
        old = ours.issue("old", [], [], LEAF_DAYS)
        shift(ours, old, -2 * DAY, -DAY)
        assert refused(running, trusting(ours, old)) == (
            "NotSecure: No secure connection to URL: the coordinator refused this client's certificate, which has "
            "expired. Renew it with `pliant certs renew`."
        )
        assert "the client's certificate is not accepted: certificate has expired" in running.log


def test_a_token_that_is_bound_to_a_certificate_is_refused_beside_any_other(ours: Authority, mutual: Running) -> None:
    with mutual as running:
        one, two = (ours.issue(name, [], [], LEAF_DAYS) for name in ("gpu-1", "gpu-2"))
        made = running.client().create_token(TokenRequest(Scope.READ, cert="gpu-1"))
        assert made.line.cert == "gpu-1"
        token = token_of(made.token)
        with Client([running.url], token, tls=trusting(ours, one)) as client:
            assert client.jobs() == ()
            with pytest.raises(NotAllowed, match="this needs a token with scope admin; yours has scope read"):
                client.tokens()  # the certificate adds no rights
        assert refused(running, trusting(ours, two), token) == (
            f"NotAllowed: Not allowed: token {token.id} is bound to the certificate gpu-1, and this client's is gpu-2."
        )


def test_a_bound_token_is_refused_without_any_certificate(tmp_path: Path, ours: Authority) -> None:
    with start_with_tls(tmp_path / "home", for_loopback(ours), trusting(ours)) as running:
        token = token_of(running.client().create_token(TokenRequest(Scope.READ, cert="gpu-1")).token)
        assert refused(running, running.tls, token) == (
            f"NotAllowed: Not allowed: token {token.id} is bound to the certificate gpu-1, and this client has none."
        )


def test_a_certificate_of_another_ca_can_be_named_by_its_host(ours: Authority, mutual: Running) -> None:
    """Certificates of an organisation have no URI of ours."""
    with mutual as running:
        named = ours.issue("x", ["gpu-3.example.org"], [], LEAF_DAYS)
        made = running.client().create_token(TokenRequest(Scope.READ, cert="gpu-3.example.org"))
        with Client([running.url], token_of(made.token), tls=trusting(ours, named)) as client:
            assert client.jobs() == ()


# ------------------------------------------------------------------------------------------------------- reload


def fingerprint(running: Running) -> bytes:
    """The certificate that a new connection gets."""
    pem = ssl.get_server_certificate(("127.0.0.1", running.port), ca_certs=str(running.tls.ca_file))
    return ssl.PEM_cert_to_DER_cert(pem)


def test_a_renewed_certificate_serves_new_connections_and_open_ones_stay(tmp_path: Path, ours: Authority) -> None:
    with start_with_tls(tmp_path / "home", for_loopback(ours), trusting(ours)) as running:
        client, before = running.client(), fingerprint(running)
        client.jobs()
        ours.renew("coordinator")
        wait_for(lambda: fingerprint(running) != before, "the new certificate to be used")
        assert "loaded the changed certificate files" in running.log
        assert client.jobs() == ()
        assert "not used" not in running.log


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("pem", "{cert} and {key} are not a certificate and its key in PEM format."),
        ("key", "The key {key} does not belong to the certificate {cert}."),
        ("mode", "Other users can read the key {key} (mode 0644). Run: chmod 600 {key}"),
        ("gone", "The key {key} cannot be read: No such file or directory."),
    ],
)
def test_broken_files_leave_the_old_certificate_in_use_and_say_why(
    tmp_path: Path, ours: Authority, broken: str, why: str
) -> None:
    made = for_loopback(ours)
    cert, key = Path(made.cert_file), Path(made.key_file)
    other = Path(for_loopback(ours, "other").key_file)
    with start_with_tls(tmp_path / "home", made, trusting(ours)) as running:
        before = fingerprint(running)
        match broken:
            case "pem":
                cert.write_text("nonsense")
            case "key":
                shutil.copy(other, key)
                os.utime(key, (1, 1))
            case "mode":
                key.write_bytes(key.read_bytes())
                key.chmod(0o644)
                os.utime(key, (1, 1))
            case _:
                key.unlink()
        said = f"the changed certificate files are not used, the ones before stay in use: {why}"
        wait_for(lambda: said.format(cert=cert, key=key) in running.log, "the warning")
        assert fingerprint(running) == before
        assert running.client().jobs() == ()
        key.unlink(missing_ok=True)
        cert.unlink()
        for_loopback(ours)
        wait_for(lambda: fingerprint(running) != before, "the repaired files to be used")
        assert running.log.count("are not used") == 1


def test_a_client_uses_its_changed_certificate_for_new_connections(ours: Authority, mutual: Running) -> None:
    with mutual as running, Client([running.url], running.token, tls=running.tls, patience_s=0.0) as client:
        shift(ours, ours.issue("old", [], [], LEAF_DAYS), -2 * DAY, -DAY)
        for end in (".key", ".pem"):
            shutil.copy(ours.issued / f"old{end}", ours.issued / f"admin{end}")
        with pytest.raises(NotSecure, match="refused this client's certificate, which has expired"):
            client.jobs()
        ours.renew("admin")
        assert client.jobs() == ()


def old_again(running: Running) -> bool:
    """Return whether a client that trusts the new CA only is refused the connection."""
    try:
        fingerprint(running)
    except ssl.SSLCertVerificationError:
        return True
    return False


def test_a_ca_is_replaced_through_a_file_with_the_old_and_the_new_one(tmp_path: Path, ours: Authority) -> None:
    """docs/operating/tls.md has the procedure. The client and the coordinator run all the while."""
    new, server, trusted = authority(tmp_path / "new", "new CA"), for_loopback(ours), tmp_path / "trusted.pem"
    shutil.copy(ours.cert_file, trusted)
    with start_with_tls(tmp_path / "home", server, TlsFiles(trusted)) as running:
        client, before = running.client(), fingerprint(running)
        client.jobs()
        trusted.write_bytes(ours.cert_file.read_bytes() + new.cert_file.read_bytes())
        replacement = for_loopback(new)
        old = [Path(name).read_bytes() for name in (server.key_file, server.cert_file)]
        for old_file, new_file in ((server.key_file, replacement.key_file), (server.cert_file, replacement.cert_file)):
            shutil.copy(new_file, old_file)
        wait_for(lambda: fingerprint(running) != before, "the certificate of the new CA to be used")
        assert client.jobs() == ()
        with Client([running.url], running.token, tls=TlsFiles(trusted)) as both:
            assert both.jobs() == ()
        assert "it is not of the CA that is trusted here" in refused(running, trusting(ours))
        shutil.copy(new.cert_file, trusted)
        with Client([running.url], running.token, tls=TlsFiles(trusted)) as last:
            assert last.jobs() == ()
        for name, content in zip((server.key_file, server.cert_file), old, strict=True):
            Path(name).write_bytes(content)
        wait_for(lambda: old_again(running), "the certificate of the old CA to be used again")
        with pytest.raises(TryAgain, match="not of the CA that is trusted here"):
            client._transport._check(0)  # for a new connection the running client reads its files again


def test_a_coordinator_that_is_killed_is_only_away(tmp_path: Path, ours: Authority) -> None:
    """Its connections end without the end that TLS has for it, which is no reason to give up."""
    certificate = for_loopback(ours)
    first = start_with_tls(tmp_path / "home", certificate, trusting(ours))
    with Client([first.url], first.token, tls=first.tls, patience_s=60.0) as client:
        client.jobs()
        first.kill()
        with start_with_tls(tmp_path / "home", certificate, trusting(ours), port=first.port):
            client.store = None  # the store was in memory
            assert client.jobs() == ()


def test_a_context_trusts_no_ca_but_the_one_that_is_given(ours: Authority) -> None:
    assert [each["subject"] for each in client_context(trusting(ours)).get_ca_certs()] == [
        ((("commonName", "test CA"),),)
    ]
