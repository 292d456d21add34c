"""Servers that say what a test wants them to say, one Python function per server."""
import contextlib
import itertools
import socket
import struct
import threading
import time

import wire
from test_bad_input import KEY, LOGIN, OK, PARAMS, READY, FakeBackend, bystander, with_fake  # noqa: F401

DONE = wire.msg("C", b"SELECT 1\0") + READY


@contextlib.contextmanager
def relay(port, to, delay=0):
    """While it lasts, the server of port `to` is at `port`, too; its answers come there `delay` seconds late. It yields a
    function: no new connections from then on."""
    made = []

    def copy(a, b, wait):
        with contextlib.suppress(OSError):
            while data := a.recv(65536):
                time.sleep(wait)
                b.sendall(data)
        with contextlib.suppress(OSError):
            b.shutdown(socket.SHUT_WR)

    def serve():
        with contextlib.suppress(OSError):
            while True:
                made.append(listener.accept()[0])
                made.append(socket.create_connection(("127.0.0.1", to)))
                for a, b, wait in ((*made[-2:], 0), (*made[:-3:-1], delay)):
                    threading.Thread(target=copy, args=(a, b, wait), daemon=True).start()
    with socket.create_server(("127.0.0.1", port)) as listener:
        threading.Thread(target=serve, daemon=True).start()

        def no_more():
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        try:
            yield no_more
        finally:
            no_more()
            for s in made:
                s.close()


def row(*values):
    body = struct.pack("!H", len(values))
    for v in values:
        body += struct.pack("!i", len(v)) + v.encode()
    return wire.msg("D", body)


class Scripted(FakeBackend):
    """`talk(connection)` runs for each accepted connection, behind its startup packet and the login given."""

    def __init__(self, talk, login=LOGIN):
        self.talk = talk
        self.numbers = itertools.count(1)
        self.seen = []  # (connection number, type, body) of every message
        self.cancels = []
        super().__init__(login)

    def one(self, c):
        with contextlib.suppress(OSError), c:
            size, code = struct.unpack("!II", self.exactly(c, 8))
            body = self.exactly(c, size - 8)
            if code == wire.SSL_REQUEST:
                c.sendall(b"N")
                size, code = struct.unpack("!II", self.exactly(c, 8))
                body = self.exactly(c, size - 8)
            if code == wire.CANCEL_REQUEST:
                self.cancels.append(body)
                return
            c.sendall(self.login)
            self.talk(Link(self, c, next(self.numbers)))


class Link:
    """One connection from the pooler, seen from the server."""

    def __init__(self, fake, sock, number):
        self.fake, self.sock, self.number = fake, sock, number

    def recv(self):
        """(type, body), or an OSError at the end; a Terminate is an end."""
        kind = self.fake.exactly(self.sock, 1).decode("latin1")
        body = self.fake.exactly(self.sock, struct.unpack("!I", self.fake.exactly(self.sock, 4))[0] - 4)
        self.fake.seen.append((self.number, kind, body))
        if kind == "X":
            raise OSError("terminated")
        return kind, body

    def send(self, *parts):
        self.sock.sendall(b"".join(parts))
