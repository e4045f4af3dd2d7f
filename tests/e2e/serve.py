"""A coordinator as a process of its own, for tests: `python serve.py '{"store": "memory:", "home": ...}'`.

It prints one line of JSON when it can be asked, logs to standard error, and stops at SIGTERM. What the command line
does not offer (short limits, so that a test need not wait for long ones) can be set here.
"""

import json
import secrets
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import uvloop

from pliant.coordinator import server, tls_listener
from pliant.coordinator.api import app, handlers, http_protocol
from pliant.coordinator.api.handlers import read_page
from pliant.coordinator.tls_listener import ServerTls, TlsListener
from pliant.stores.base import Entry, Store
from pliant.stores.etcd import EtcdAccess, EtcdStore, parse_place
from pliant.stores.memory import MemoryStore
from pliant.stores.sqlite import SqliteStore
from pliant.telemetry import configure_logging
from pliant.wire import protocol


def open_store(text: str, until: ExitStack) -> Store:
    kind, _, path = text.partition(":")
    if kind == "memory":
        return MemoryStore(secrets.token_hex(8))
    assert kind in ("sqlite", "etcd"), text
    store = SqliteStore(path) if kind == "sqlite" else EtcdStore(EtcdAccess(*parse_place(path)))
    until.callback(store.close)
    return store


def set_limits(options: dict[str, Any]) -> None:
    http_protocol.HEAD_TIME_S = tls_listener.HANDSHAKE_S = options["head_time_s"]
    http_protocol.STALL_S = options["stall_s"]
    http_protocol.SHUTDOWN_S = options["last_s"]
    app.BODY_TIME_S = options["body_time_s"]
    handlers.STREAM_QUIET_S = options["stream_quiet_s"]
    if (most := options["connections_max"]) is not None:
        server._connection_limit = lambda: most
    if (oldest := options["protocol_oldest"]) is not None:
        protocol.OLDEST = oldest
    if options["unknown_events"]:
        vars(handlers)["read_page"] = page_of_a_newer_version


def page_of_a_newer_version(*where: Any) -> tuple[list[Entry], bool]:
    """Events as a newer coordinator may send them: the first two are of a kind that no client of today knows."""
    page, is_last = read_page(*where)
    newer = b'{"type":"MoonRose","at":1.0}'
    return [Entry(each.revision, newer if each.revision < 3 else each.data) for each in page], is_last


def optional_path(text: str | None) -> Any:
    return None if text is None else Path(text)


def main() -> None:
    options = json.loads(sys.argv[1])
    configure_logging(sys.stderr)
    set_limits(options)
    home = Path(options["home"])
    with ExitStack() as until:
        store = open_store(options["store"], until)
        tls = None if options["tls"] is None else TlsListener(ServerTls(*map(optional_path, options["tls"])))
        bound = server.listen(server.Address("127.0.0.1", options["port"]), expose=False)
        url = f"{'http' if tls is None else 'https'}://127.0.0.1:{bound.getsockname()[1]}"
        hosts = tuple(options["hosts"])
        coordinator = server.Coordinator(
            store,
            home / "token",
            hosts,
            options["lease_ttl_s"],
            advertise=url,
            tls=tls,
            submission_images=tuple(options["submissions"]),
        )
        ready = json.dumps({"url": url})
        uvloop.run(coordinator.serve(bound, lambda: print(ready, flush=True)))


if __name__ == "__main__":
    main()
