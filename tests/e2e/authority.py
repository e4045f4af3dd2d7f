"""Certificates for tests: a CA in a folder, certificates of it, and coordinators that use them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from e2e.running import Running, start
from pliant.certificates import Authority, CertificateInfo
from pliant.credentials import TlsFiles
from pliant.tls import CA_DAYS, LEAF_DAYS


def authority(folder: Path, title: str = "test CA") -> Authority:
    """A new CA."""
    made = Authority(folder / "ca", folder / "certs")
    made.create(title, CA_DAYS)
    return made


def for_loopback(made: Authority, name: str = "coordinator") -> CertificateInfo:
    """A certificate for a coordinator on this machine."""
    return made.issue(name, ["localhost"], ["127.0.0.1"], LEAF_DAYS)


def shift(made: Authority, info: CertificateInfo, begins: timedelta, ends: timedelta) -> None:
    """Sign a certificate again with other times, counted from now."""
    path = Path(info.cert_file)
    old = x509.load_pem_x509_certificate(path.read_bytes())
    key = serialization.load_pem_private_key(made.key_file.read_bytes(), password=None)
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(old.subject).issuer_name(old.issuer).public_key(old.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now + begins).not_valid_after(now + ends)
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))  # type: ignore[arg-type]


def start_with_tls(
    home: Path, server: CertificateInfo, trusted: TlsFiles, client_ca: Path | None = None, **limits: Any
) -> Running:
    """A coordinator with that certificate, and clients with those files."""
    tls = (server.cert_file, server.key_file, None if client_ca is None else str(client_ca))
    return start(limits.pop("store", "memory:"), home=home, trusted=trusted, tls=tls, **limits)
