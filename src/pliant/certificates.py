"""Make certificates: an authority (CA) of your own, certificates for coordinators and clients, and ephemeral ones.

A CA and its certificates are files: `PLIANT_HOME/ca/ca.pem` and `ca.key`, and `PLIANT_HOME/certs/NAME.pem` and
`NAME.key`. Keys have mode 0600. All keys are of the curve P-256. Only this module imports `cryptography`, of the extra
`tls`; checking and using certificates needs Python's `ssl` alone (`pliant.tls`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pliant.core.model.names import bad_name
from pliant.credentials import check_ownership, is_missing
from pliant.errors import BadInput
from pliant.private_files import create_file, replace_file
from pliant.tls import CA_DAYS, URI_PREFIX

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise BadInput(
        "This needs the package cryptography, which is not installed. Run: pip install 'pliant[tls]'"
    ) from error

DAYS_MAX = 36500.0
EARLY = timedelta(minutes=5)  # a new certificate is valid that much earlier, for machines whose clocks are behind
_SUBJECT_MAX = 64  # characters of a common name, by the standard


@dataclass(frozen=True, slots=True)
class CertificateInfo:
    """The properties of a certificate, as `pliant certs list` shows them. Times are seconds of the epoch."""

    name: str
    dns: tuple[str, ...]
    ip: tuple[str, ...]
    begins_at: float
    ends_at: float
    sha256: str
    cert_file: str
    key_file: str


@dataclass(frozen=True, slots=True)
class Authority:
    """A CA in a folder, and the folder of the certificates that it issued."""

    folder: Path
    issued: Path

    @property
    def cert_file(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def key_file(self) -> Path:
        return self.folder / "ca.key"

    def create(self, title: str, days: float) -> CertificateInfo:
        """Create the CA. Raises BadInput if there is one already."""
        for path in (self.cert_file, self.key_file):
            if not is_missing(path):
                raise BadInput(
                    f"{path} exists: there is a CA already, and every certificate of it would become invalid. Keep "
                    "it, or move that folder away first."
                )
        _require_days(days)
        key = ec.generate_private_key(ec.SECP256R1())
        name = _subject(title)
        builder = _dated(x509.CertificateBuilder(), days).subject_name(name).issuer_name(name)
        usage = x509.KeyUsage(
            key_cert_sign=True, crl_sign=True, digital_signature=False, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
            decipher_only=False,
        )  # fmt: skip
        cert = (
            builder.public_key(key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        _make_folder(self.folder)
        _write_new(self.key_file, _key_pem(key), 0o600)
        _write_new(self.cert_file, _pem(cert), 0o644)
        return _describe(cert, self.cert_file, self.key_file)

    def issue(self, name: str, dns: Sequence[str], ips: Sequence[str], days: float) -> CertificateInfo:
        """Issue a certificate: for a coordinator if it names hosts, and for clients always."""
        _require_name(name)
        cert_file, _ = self._files(name)
        if not is_missing(cert_file):
            raise BadInput(f"{cert_file} exists. Run `pliant certs renew {name}`, or choose another name.")
        _require_days(days)
        addresses = tuple(_address(text) for text in ips)
        for host in dns:
            _require_host(host)
        names = [
            x509.UniformResourceIdentifier(f"{URI_PREFIX}{name}"),
            *(x509.DNSName(host) for host in dict.fromkeys(dns)),
            *(x509.IPAddress(address) for address in dict.fromkeys(addresses)),
        ]
        return self._sign(name, x509.SubjectAlternativeName(names), days, replace=False)

    def renew(self, name: str) -> CertificateInfo:
        """Replace a certificate and its key: the same names and the same lifetime, from now."""
        _require_name(name)
        old = self._read(name)
        days = (old.not_valid_after_utc - old.not_valid_before_utc - EARLY) / timedelta(days=1)
        return self._sign(name, _alternative_names(old), days, replace=True)

    def list(self) -> tuple[CertificateInfo, ...]:
        """Return all issued certificates, by name."""
        found = sorted(self.issued.glob("*.pem")) if self.issued.is_dir() else []
        return tuple(_describe(self._read(path.stem), *self._files(path.stem)) for path in found)

    def describe(self) -> CertificateInfo:
        """Return the properties of the CA itself."""
        return _describe(_load(self.cert_file), self.cert_file, self.key_file)

    def _files(self, name: str) -> tuple[Path, Path]:
        return self.issued / f"{name}.pem", self.issued / f"{name}.key"

    def _read(self, name: str) -> x509.Certificate:
        cert_file, _ = self._files(name)
        if is_missing(cert_file):
            known = ", ".join(path.stem for path in sorted(self.issued.glob("*.pem"))) or "none"
            raise BadInput(f"There is no certificate {name}: {cert_file} does not exist. Issued are: {known}.")
        return _load(cert_file)

    def _sign(self, name: str, names: x509.SubjectAlternativeName, days: float, *, replace: bool) -> CertificateInfo:
        ca, ca_key = _load(self.cert_file), self._ca_key()
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if any(not isinstance(each, x509.UniformResourceIdentifier) for each in names):
            usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        cert = (
            _dated(x509.CertificateBuilder(), days, until=ca.not_valid_after_utc)
            .subject_name(_subject(name))
            .issuer_name(ca.subject)
            .public_key(key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(names, critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
            .sign(ca_key, hashes.SHA256())
        )
        cert_file, key_file = self._files(name)
        _make_folder(self.issued)
        replace_file(key_file, _key_pem(key), 0o600)  # one without a certificate was left by an interrupted `issue`
        write = replace_file if replace else _write_new
        write(cert_file, _pem(cert), 0o644)
        return _describe(cert, cert_file, key_file)

    def _ca_key(self) -> ec.EllipticCurvePrivateKey:
        if is_missing(self.key_file):
            raise BadInput(f"There is no CA: {self.key_file} does not exist. Run `pliant certs init` first.")
        check_ownership(self.folder, "The CA's folder")
        check_ownership(self.key_file, "The CA's key")
        try:
            key = serialization.load_pem_private_key(self.key_file.read_bytes(), password=None)
        except OSError as error:
            raise BadInput(f"The CA's key {self.key_file} cannot be read: {error.strerror}.") from error
        except (ValueError, TypeError) as error:
            raise BadInput(f"{self.key_file} is not a private key: {error}.") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise BadInput(f"{self.key_file} is not a key that `pliant certs init` made.")
        return key


def ephemeral_certificate() -> tuple[bytes, bytes]:
    """Return a new self-signed certificate and its key as PEM. It names nothing: a peer compares its fingerprint."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _subject("pliant peer")
    builder = _dated(x509.CertificateBuilder(), CA_DAYS).subject_name(name).issuer_name(name)
    cert = builder.public_key(key.public_key()).sign(key, hashes.SHA256())
    return _pem(cert), _key_pem(key)


def _dated(builder: x509.CertificateBuilder, days: float, until: datetime | None = None) -> x509.CertificateBuilder:
    """Add a random serial number and the time of validity, which never exceeds that of the CA."""
    now = datetime.now(UTC).replace(microsecond=0)
    end = now + timedelta(days=days)
    if until is not None:
        if until <= now:
            raise BadInput(f"The CA itself expired on {until:%Y-%m-%d %H:%M:%S} UTC. Make a new one.")
        end = min(end, until)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - EARLY).not_valid_after(end)


def _subject(title: str) -> x509.Name:
    if not 1 <= len(title) <= _SUBJECT_MAX:
        raise BadInput(f"A certificate's name has 1 to {_SUBJECT_MAX} characters; this one has {len(title)}.")
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, title)])


def _require_name(name: str) -> None:
    if wrong := bad_name(name):
        raise BadInput(f"Invalid certificate name: {wrong}.")


def _require_days(days: float) -> None:
    if not 0 < days <= DAYS_MAX:
        raise BadInput(f"A certificate can be valid for more than 0 and at most {DAYS_MAX:g} days; got {days:g}.")


def _require_host(host: str) -> None:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        labels = host.removeprefix("*.").split(".")
        if host.isascii() and len(host) <= 253 and all(not bad_name(label.replace(".", "_")) for label in labels):
            return
        raise BadInput(f"--dns must be a host name in ASCII, such as trainer.example.org; got {host!r}.") from None
    raise BadInput(f"--dns must be a host name, and {host} is an address. Pass it with --ip.")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(text)
    except ValueError as error:
        raise BadInput(f"--ip must be an address, such as 10.0.0.5; got {text!r}.") from error


def _load(path: Path) -> x509.Certificate:
    if is_missing(path):
        raise BadInput(f"There is no CA: {path} does not exist. Run `pliant certs init` first.")
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise BadInput(f"The certificate {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise BadInput(f"{path} is not a certificate in PEM format.") from error


def _alternative_names(cert: x509.Certificate) -> x509.SubjectAlternativeName:
    try:
        return cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return x509.SubjectAlternativeName([])


def _describe(cert: x509.Certificate, cert_file: Path, key_file: Path) -> CertificateInfo:
    names = _alternative_names(cert)
    title = cert.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return CertificateInfo(
        name=str(title[0].value) if title else cert_file.stem,
        dns=tuple(names.get_values_for_type(x509.DNSName)),
        ip=tuple(str(address) for address in names.get_values_for_type(x509.IPAddress)),
        begins_at=cert.not_valid_before_utc.timestamp(),
        ends_at=cert.not_valid_after_utc.timestamp(),
        sha256=cert.fingerprint(hashes.SHA256()).hex(),
        cert_file=str(cert_file),
        key_file=str(key_file),
    )


def _pem(cert: x509.Certificate) -> bytes:
    return cert.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"The folder {folder} cannot be created: {error.strerror}.") from error
    check_ownership(folder, "The folder")


def _write_new(path: Path, data: bytes, mode: int) -> None:
    """Write a file that must not exist."""
    try:
        create_file(path, data, mode)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}.") from error
