"""TLS between two members, without certificates that a person has to manage.

Each member makes a certificate for itself when it starts, and no CA signs it. TLS alone would encrypt to any process
in between. So the proofs of the handshake (`pliant.train.peer.framing`) cover the fingerprint of the certificate that
the server presents: a process in between has another certificate, and does not have the generation's key to make
proofs for it. The key comes from the coordinator, over its own TLS.
"""

from __future__ import annotations

import hashlib
import os
import ssl

from pliant.certificates import ephemeral_certificate
from pliant.train.peer.framing import PeerConnection


class PeerTls:
    """The certificate of this process, and the contexts for both directions."""

    def __init__(self) -> None:
        cert, key = ephemeral_certificate()
        self._fingerprint = _fingerprint(ssl.PEM_cert_to_DER_cert(cert.decode("ascii")))
        self._server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._server.minimum_version = ssl.TLSVersion.TLSv1_3
        self._server.num_tickets = 0
        _load(self._server, cert + key)
        self._client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._client.minimum_version = ssl.TLSVersion.TLSv1_3
        self._client.check_hostname = False  # the proofs cover the fingerprint instead
        self._client.verify_mode = ssl.CERT_NONE

    def accept(self, connection: PeerConnection) -> None:
        """Encrypt a connection as the server."""
        connection.start_tls(
            lambda sock: self._server.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        )
        connection.channel = (self._fingerprint,)

    def connect(self, connection: PeerConnection) -> None:
        """Encrypt a connection as the client."""
        certificate = connection.start_tls(lambda sock: self._client.wrap_socket(sock, do_handshake_on_connect=False))
        connection.channel = (_fingerprint(certificate),)


def _fingerprint(der: bytes) -> bytes:
    return hashlib.sha256(der).digest()


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    """Load a certificate and its key. OpenSSL reads files only, and the key must not be on a disk."""
    handle = os.memfd_create("pliant-peer", os.MFD_CLOEXEC)
    try:
        os.write(handle, pem)
        context.load_cert_chain(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)
