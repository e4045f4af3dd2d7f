"""A coordinator's process with leases short enough for a schedule: `python -m schedules.serve PORT FOLDER`."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

from pliant.coordinator.server import Address, Coordinator, listen
from pliant.stores.sqlite import SqliteStore
from schedules.messages import LEASE_TTL_S, die_with_parent


def main() -> None:
    """The program. Says `ready` when it serves."""
    die_with_parent()
    port, folder = int(sys.argv[1]), Path(sys.argv[2])
    logging.basicConfig(level=logging.DEBUG, format="%(asctime)s %(levelname)s %(message)s")
    for loud in ("asyncio", "httptools", "uvicorn"):
        logging.getLogger(loud).setLevel(logging.INFO)
    with SqliteStore(folder / "store.db") as store:
        coordinator = Coordinator(store, folder / "token", lease_ttl_s=LEASE_TTL_S)
        bound = listen(Address("127.0.0.1", port), expose=False)
        asyncio.run(coordinator.serve(bound, lambda: print("ready", flush=True)))


if __name__ == "__main__":
    main()
