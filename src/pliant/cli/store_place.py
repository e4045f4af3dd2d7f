"""The value of `--store`: which store, where, and how to open it."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from pliant import settings
from pliant.cli.output import short_path
from pliant.credentials import check_ownership
from pliant.errors import BadInput

if TYPE_CHECKING:
    from pliant.stores.archive import Archive
    from pliant.stores.base import Store
    from pliant.stores.etcd import EtcdAccess

__all__ = ["FORMS", "StorePlace", "open_archive", "parse_store"]

log = logging.getLogger(__name__)

FORMS = "sqlite:PATH|etcd:HOST:PORT,...[/PREFIX]|memory:"


@dataclass(frozen=True, slots=True)
class MemoryPlace:
    """A store in this process.

    Every place has its `text`, which is the value of `--store`, and the same for people in `short_text`. `check` raises
    BadInput if other users can change the store; call it before and after `open`.
    """

    text: str = "memory:"
    short_text: str = "memory:"
    is_lasting: bool = False

    def check(self) -> None:
        pass

    def open(self) -> AbstractContextManager[Store]:
        from secrets import token_hex

        from pliant.stores.memory import MemoryStore

        return nullcontext(MemoryStore(token_hex(16)))


@dataclass(frozen=True, slots=True)
class SqlitePlace:
    """A store in a file."""

    path: Path
    is_lasting: bool = True

    @property
    def text(self) -> str:
        return f"sqlite:{self.path.absolute()}"

    @property
    def short_text(self) -> str:
        return f"sqlite:{short_path(self.path)}"

    def check(self) -> None:
        """Check the owner of the store's file and of the files beside it."""
        check_ownership(self.path, "The store")
        for end in ("-wal", "-shm", ".mark"):
            real = self.path.resolve()
            check_ownership(real.with_name(f"{real.name}{end}"), "The store's file")

    def open(self) -> AbstractContextManager[Store]:
        from pliant.stores.sqlite import SqliteStore

        return SqliteStore(self.path)


@dataclass(frozen=True, slots=True)
class EtcdPlace:
    """A store in an etcd cluster."""

    access: EtcdAccess
    is_lasting: bool = True

    @property
    def text(self) -> str:
        return f"etcd:{self.access.place}"

    @property
    def short_text(self) -> str:
        return self.text

    def check(self) -> None:
        pass  # etcd decides who may change its keys

    def open(self) -> AbstractContextManager[Store]:
        from pliant.stores.etcd import EtcdStore

        return EtcdStore(self.access)


StorePlace: TypeAlias = MemoryPlace | SqlitePlace | EtcdPlace


def open_archive(place: StorePlace, text: str | None, identity: str) -> Archive | None:
    """Return the archive that `--archive` names, or the one beside a file; None if old events stay in the store."""
    from pliant.stores.archive import open_archive as opened

    where: str | Path | None = text
    if text is None and isinstance(place, SqlitePlace):
        where = Path(f"{place.path}.archive")
    if where is None:
        if place.is_lasting:
            log.warning(
                "old events of jobs stay in %s, which grows with every step: pass --archive with a folder or URL that "
                "all coordinators reach",
                place.short_text,
            )
        return None
    if isinstance(where, Path) or "://" not in where:
        where = Path(where).expanduser()
        check_ownership(where, "The archive")
    return opened(where, identity)


def parse_store(text: str | None, home: Path, *, insecure: bool = False) -> StorePlace:
    """Return the place that `--store` names. Credentials for etcd come from the environment's files.

    `insecure` allows an etcd on other machines without TLS.
    """
    if text is None:
        return SqlitePlace(home / "store.db")
    kind, _, where = text.partition(":")
    if kind == "sqlite" and where:
        return SqlitePlace(Path(where).expanduser())
    if kind == "etcd" and where:
        from pliant.stores.etcd import EtcdAccess, parse_place

        endpoints, prefix = parse_place(where)
        files = settings.read_etcd()
        access = EtcdAccess(
            endpoints,
            prefix,
            user=files.user,
            password_file=files.password_file,
            ca_file=files.ca_file,
            cert_file=files.cert_file,
            key_file=files.key_file,
        )
        if not (access.is_local or access.ca_file or insecure):
            raise BadInput(
                f"Without TLS, secrets of the store would cross the network to etcd at {access.place} unencrypted. "
                "Set PLIANT_ETCD_CA_FILE. On a network that you trust, pass --insecure instead."
            )
        return EtcdPlace(access)
    if text == "memory:":
        return MemoryPlace()
    raise BadInput(f"--store must be sqlite:PATH, etcd:HOST:PORT,HOST:PORT/PREFIX or memory:, not {text!r}.")
