"""The credential members show one another: a key for each generation, out of a secret that never leaves the store.

Members talk to one another directly, and nobody else may (P7). Whoever is in a generation is told its key with the
answers to its watch; who is not in it cannot work it out. The secret is made once for a store, so every coordinator on
that store, now and after a restart, gives out the same keys.
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
_MADE = b'{"type":"SecretMade"}'  # that it was made, and when in the stream; the secret itself is in the record alone


@dataclass(frozen=True, slots=True)
class PeerSecret:
    """What is kept, in hexadecimal digits."""

    secret: str = field(repr=False)


class GenerationKeys:
    """The keys of one store's generations."""

    def __init__(self, store: Store) -> None:
        secret = bytes.fromhex(_kept(store).secret)

        @lru_cache(maxsize=4096)
        def key(job: str, generation: int) -> str:
            """Call with a job's name and the number of one of its generations."""
            return hmac.digest(secret, f"{job}\n{generation}".encode(), "sha256").hex()

        self.key = key


def _kept(store: Store) -> PeerSecret:
    """The store's secret; made now if there is none, and if somebody else makes one at this moment, that one."""
    stored = store.read(STREAM)
    if stored is None:
        made = encode_state(PeerSecret(secrets.token_hex(SECRET_BYTES)))
        store.write([Write(STREAM, 0, (_MADE,), made)])  # if another coordinator was quicker, theirs is there
        stored = store.read(STREAM)
    assert stored is not None, "what was written, by us or by another, can be read"
    return decode_state(stored.record, PeerSecret)
