"""TLS of clients and servers: contexts from files, which are loaded again when they change.

With a CA file a client accepts only https and only certificates of that CA. Without one, https is checked against the
system's CAs. Files are compared by their times, so a renewed certificate needs no restart: connections that are open
stay, and new ones use it. Files that cannot be loaded leave the ones before in use, with a warning.
"""

from __future__ import annotations

import logging
import os
import ssl
import stat
from collections.abc import Callable
from pathlib import Path

from pliant.credentials import TlsFiles, check_ownership, is_private
from pliant.errors import BadInput

CA_DAYS = 3650.0  # lifetimes of what `pliant certs` makes
LEAF_DAYS = 365.0
URI_PREFIX = "pliant:"  # of the URI in a certificate that `pliant certs issue` made; the certificate's name follows

log = logging.getLogger(__name__)

_Stamp = tuple[tuple[int, int, int] | None, ...]


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a new context for a client. Raises BadInput if a file cannot be used."""
    if files.ca_file is None:
        context = ssl.create_default_context()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts that CA and no other
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_client_files(context, files)
    return context


def load_client_files(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Load the files into a context that may be in use already."""
    if files.ca_file is not None:
        load_ca(context, files.ca_file, "The CA file")
    if (files.cert_file is None) != (files.key_file is None):
        raise BadInput("PLIANT_CERT_FILE and PLIANT_KEY_FILE belong together. Set both, or neither.")
    if files.cert_file is not None and files.key_file is not None:
        load_chain(context, files.cert_file, files.key_file)


class FileWatch:
    """Calls `load` when one of the files has changed and can be loaded; else logs the reason, once for each change.

    A certificate and its key are two files. They may not match for a moment while both are replaced, so a failure is
    logged only if the files are still the same at the next look.
    """

    def __init__(self, files: tuple[Path, ...], load: Callable[[], None]) -> None:
        self._files = files
        self._load = load
        self._loaded = self._tried = self._logged = self._stamp()

    def look(self) -> None:
        """Load the files if they have changed. Never raises."""
        stamp = self._stamp()
        if stamp in (self._loaded, self._logged):
            return
        try:
            self._load()
        except BadInput as error:
            if stamp == self._tried:
                self._logged = stamp
                log.warning("the changed certificate files are not used, the ones before stay in use: %s", error.why)
            self._tried = stamp
        else:
            self._loaded = stamp
            log.info("loaded the changed certificate files: %s", ", ".join(map(str, self._files)))

    def _stamp(self) -> _Stamp:
        return tuple(_file_stamp(path) for path in self._files)


def describe_failure(error: ssl.SSLError) -> str | None:
    """Return why a client has no TLS connection to a coordinator, and what to do about it.

    None for an error that a retry may cure, such as the end of a connection to a coordinator that was killed.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the coordinator's certificate is not accepted: {_verification(error)}"
    return _FAILURES.get(error.reason or "")


def _verification(error: ssl.SSLCertVerificationError) -> str:
    """Return why a certificate is not accepted. The numbers are OpenSSL's."""
    match error.verify_code:
        case 9:
            return "it is not valid yet. Compare the clocks of both machines"
        case 10:
            return "it has expired. Renew it with `pliant certs renew` on the CA's machine"
        case 18 | 19 | 20 | 21:
            return "it is not of the CA that is trusted here. Pass the right one with --ca-file or PLIANT_CA_FILE"
        case 26:
            issue = "`pliant certs issue NAME --dns HOST --ip ADDRESS`"
            return f"it is for clients only. Issue one for a coordinator: {issue}"
        case 62 | 64:
            names = error.verify_message.rstrip(".")
            return f"{names}. Use a name that is in it, or issue one with this name: `pliant certs issue`"
        case _:
            return error.verify_message


_OWN = "Set PLIANT_CERT_FILE and PLIANT_KEY_FILE to a certificate of the CA that it trusts (`pliant certs issue NAME`)"
_FAILURES = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": f"the coordinator requires a client certificate. {_OWN}",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": f"the coordinator refused this client, perhaps for want of a certificate. {_OWN}",
    "TLSV1_ALERT_UNKNOWN_CA": f"the coordinator does not trust the CA of this client's certificate. {_OWN}",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the coordinator refused this client's certificate, which has expired. "
    "Renew it with `pliant certs renew`",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the coordinator refused this client's certificate; the coordinator's log has the "
    "reason",
    "WRONG_VERSION_NUMBER": "the server there does not use TLS. Start the coordinator with --tls-cert and --tls-key",
}


def certificate_names(peer: object) -> frozenset[str]:
    """Return the names of a peer's verified certificate, as `getpeercert` returns it: DNS names, and its own name."""
    if not isinstance(peer, dict):
        return frozenset()
    found: set[str] = set()
    for kind, value in peer.get("subjectAltName", ()):
        if kind == "DNS":
            found.add(value)
        elif kind == "URI" and value.startswith(URI_PREFIX):
            found.add(value.removeprefix(URI_PREFIX))
    return frozenset(found)


def _file_stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def load_ca(context: ssl.SSLContext, path: Path, what: str) -> None:
    """Trust the certificates in a file."""
    check_ownership(path, what)
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        raise BadInput(f"{what} {path} has no certificate in PEM format.") from error
    except OSError as error:
        raise BadInput(f"{what} {path} cannot be read: {error.strerror}.") from error


def load_chain(context: ssl.SSLContext, cert_file: Path, key_file: Path) -> None:
    """Present the certificate in a file, with the key in another one that only its owner can read."""
    check_ownership(cert_file, "The certificate")
    _require_private(key_file)
    try:
        context.load_cert_chain(cert_file, key_file, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise BadInput(f"The key {key_file} does not belong to the certificate {cert_file}.") from error
        raise BadInput(f"{cert_file} and {key_file} are not a certificate and its key in PEM format.") from error
    except OSError as error:
        raise BadInput(f"The certificate {cert_file} cannot be read: {error.strerror}.") from error


def _no_password() -> str:
    raise BadInput("The key is encrypted with a password. Pliant needs a key without one, with mode 0600.")


def _require_private(path: Path) -> None:
    """Raise BadInput if the key cannot be read, or other users can read it."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
    except OSError as error:
        raise BadInput(f"The key {path} cannot be read: {error.strerror}.") from error
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in (0, os.geteuid()):
        raise BadInput(f"The key {path} belongs to another user (uid {found.st_uid}), who can use it.")
    if not is_private(found):
        raise BadInput(f"Other users can read the key {path} (mode {mode:04o}). Run: chmod 600 {path}")
