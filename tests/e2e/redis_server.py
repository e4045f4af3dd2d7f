"""A real Redis server for tests."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as NotThere

from e2e.running import wait_for
from unit.cli.program import free_port

PASSWORD = "a-password-of-a-test"


class RedisServer:
    """A Redis server with a password, and its client."""

    def __init__(self, program: str, folder: Path) -> None:
        port = free_port()
        self.process = subprocess.Popen(
            [program, *f"--port {port} --bind 127.0.0.1 --dir {folder} --requirepass {PASSWORD} --save".split(), ""],
            stdout=subprocess.DEVNULL,
        )
        self.url = f"redis://:{PASSWORD}@127.0.0.1:{port}/0"
        self.client = Redis.from_url(self.url)
        wait_for(self._answers, "the Redis server", 60)

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except NotThere:
            return False

    def add(self, stream: str, count: int) -> None:
        with self.client.pipeline() as pipeline:
            for _ in range(count):
                pipeline.xadd(stream, {"of": stream}, id="0-*")
            pipeline.execute()

    def close(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()


@contextmanager
def redis_server(folder: Path) -> Iterator[RedisServer]:
    """Run a server; skip the test where the program is not installed."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server is not installed")
    found = RedisServer(program, folder)
    try:
        yield found
    finally:
        found.close()
