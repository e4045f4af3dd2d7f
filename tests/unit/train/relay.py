"""A machine in the middle: passes connections on, and spoils what a test wants spoiled."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

Spoil = Callable[[int, int, bytes], bytes | None]
"""Called with the connection's number, how many bytes it passed on before, and those that come now; None cuts it."""


def untouched(connection: int, before: int, data: bytes) -> bytes | None:
    return data


class Relay:
    """Listens in place of `target`. `onward` sees what goes there, `back` what comes from there."""

    def __init__(self, target: str, onward: Spoil = untouched, back: Spoil = untouched) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._onward = onward
        self._back = back
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            self._sockets += [near, far]
            number, self.connections = self.connections, self.connections + 1
            for source, sink, spoil in ((near, far, self._onward), (far, near, self._back)):
                thread = threading.Thread(target=self._pass_on, args=(number, source, sink, spoil))
                self._threads.append(thread)
                thread.start()

    def _pass_on(self, number: int, source: socket.socket, sink: socket.socket, spoil: Spoil) -> None:
        before = 0
        with suppress(OSError):
            while data := source.recv(1 << 16):
                passed = spoil(number, before, data)
                if passed is None:
                    break
                sink.sendall(passed)
                before += len(data)
        for sock in (source, sink):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for sock in (self._listener, *self._sockets):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for sock in (self._listener, *self._sockets):
            sock.close()
