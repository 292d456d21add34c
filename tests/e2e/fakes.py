"""Servers that say what a test wants them to say, one Python function per server."""
import contextlib
import itertools
import struct

import wire
from test_bad_input import KEY, LOGIN, OK, PARAMS, READY, FakeBackend, bystander, with_fake  # noqa: F401

DONE = wire.msg("C", b"SELECT 1\0") + READY


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
