"""The keys that members show one another: one for each generation, derived from a secret of the store.

Only members of a generation may connect to its other members (P7). A member gets the key with the answers to its watch.
Others cannot derive it, because the secret never leaves the coordinator and its store. The secret is created once for a
store, so every coordinator on that store derives the same keys, also after a restart.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field
from functools import lru_cache

from pliant.stores.base import Store, Write
from pliant.wire.codec import decode_state, encode_state

STREAM = "@peers"
SECRET_BYTES = 32
_MADE = b'{"type":"SecretMade"}'  # the event; only the record has the secret


@dataclass(frozen=True, slots=True)
class PeerSecret:
    """The secret of a store, in hexadecimal digits."""

    secret: str = field(repr=False)


class GenerationKeys:
    """The keys of one store's generations."""

    def __init__(self, store: Store) -> None:
        secret = bytes.fromhex(_secret_of(store).secret)

        @lru_cache(maxsize=4096)
        def key(job: str, created_at: float, generation: int) -> str:
            """Return the key of a generation of a job. A job that is deleted and created again has other keys."""
            return hmac.digest(secret, f"{job}\n{created_at!r}\n{generation}".encode(), "sha256").hex()

        self.key = key


def _secret_of(store: Store) -> PeerSecret:
    """Return the store's secret. Create it if there is none; of two coordinators at once, the first wins."""
    stored = store.read(STREAM)
    if stored is None:
        made = encode_state(PeerSecret(secrets.token_hex(SECRET_BYTES)))
        store.write([Write(STREAM, 0, (_MADE,), made)])  # a conflict means that another coordinator was faster
        stored = store.read(STREAM)
    assert stored is not None, "the secret was written, here or by another coordinator"
    return decode_state(stored.record, PeerSecret)
