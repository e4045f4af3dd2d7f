"""The certificates and kubeconfigs of a test cluster: one CA, one certificate for each program and node."""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = timedelta(days=30)
CLUSTER_ADMINS = "system:masters"

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True, slots=True)
class Pair:
    """The files of a certificate and its key."""

    cert: Path
    key: Path


class ClusterAuthority:
    """The CA of one cluster, in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject("test-cluster", ())
        usage = x509.BasicConstraints(ca=True, path_length=None)
        made = _builder(self._name, self._name, self._key).add_extension(usage, critical=True)
        self._cert = made.sign(self._key, hashes.SHA256())
        self.pair = self._write("ca", self._key, self._cert)

    def issue(self, name: str, user: str, groups: Sequence[str] = (), hosts: Sequence[str] = ()) -> Pair:
        """Issue a certificate for a user of the API, which also serves as a certificate of the given hosts."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        made = _builder(_subject(user, groups), self._name, key).add_extension(usage, critical=False)
        if hosts:
            made = made.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        return self._write(name, key, made.sign(self._key, hashes.SHA256()))

    def signing_key(self) -> Pair:
        """Make the key pair of the service accounts' tokens; `cert` is the public key."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        private, public = self._folder / "accounts.key", self._folder / "accounts.pub"
        private.write_bytes(_key_pem(key))
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        public.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, form))
        return Pair(public, private)

    def kubeconfig(self, path: Path, server: str, pair: Pair) -> Path:
        """Write a kubeconfig that holds everything it needs."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            "apiVersion: v1\n"
            "kind: Config\n"
            "current-context: test\n"
            "contexts: [{name: test, context: {cluster: test, user: test}}]\n"
            f"clusters: [{{name: test, cluster: {{server: '{server}', "
            f"certificate-authority-data: {_base64(self.pair.cert)}}}}}]\n"
            f"users: [{{name: test, user: {{client-certificate-data: {_base64(pair.cert)}, "
            f"client-key-data: {_base64(pair.key)}}}}}]\n",
            encoding="utf-8",
        )
        path.chmod(0o600)
        return path

    def _write(self, name: str, key: Key, cert: x509.Certificate) -> Pair:
        pair = Pair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        pair.key.write_bytes(_key_pem(key))
        pair.key.chmod(0o600)
        pair.cert.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        return pair


def _subject(user: str, groups: Sequence[str]) -> x509.Name:
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + LIFETIME)
    )


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _key_pem(key: Key) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
