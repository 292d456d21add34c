"""A PostgreSQL client that speaks raw protocol, so that a test can say exactly which bytes it sends."""
import base64
import hashlib
import hmac
import os
import socket
import struct
import time
from dataclasses import dataclass

SSL_REQUEST = 80877103
GSSENC_REQUEST = 80877104
CANCEL_REQUEST = 80877102


@dataclass
class Msg:
    type: str
    body: bytes

    @property
    def fields(self):
        """ErrorResponse / NoticeResponse as a dict of its one-letter fields."""
        assert self.type in "EN", self
        out = {}
        for part in self.body.split(b"\0"):
            if part:
                out[chr(part[0])] = part[1:].decode("utf-8", "replace")
        return out

    @property
    def text(self):
        return self.fields["M"]

    @property
    def code(self):
        return self.fields["C"]

    @property
    def tag(self):
        assert self.type == "C", self
        return self.body[:-1].decode()

    @property
    def row(self):
        assert self.type == "D", self
        (n,) = struct.unpack_from("!H", self.body)
        at, out = 2, []
        for _ in range(n):
            (size,) = struct.unpack_from("!i", self.body, at)
            at += 4
            out.append(None if size < 0 else self.body[at:at + size].decode())
            at += max(size, 0)
        return out

    @property
    def columns(self):
        """RowDescription: [(name, type oid)]."""
        assert self.type == "T", self
        (n,) = struct.unpack_from("!H", self.body)
        at, out = 2, []
        for _ in range(n):
            end = self.body.index(b"\0", at)
            name = self.body[at:end].decode()
            _, _, oid, _, _, _ = struct.unpack_from("!IhIhih", self.body, end + 1)
            out.append((name, oid))
            at = end + 19
        return out


class Closed(ConnectionError):
    """The other side closed the connection."""


def cstr(s):
    return (s if isinstance(s, bytes) else s.encode()) + b"\0"


def msg(kind, body=b""):
    return (kind if isinstance(kind, bytes) else kind.encode()) + struct.pack("!I", len(body) + 4) + body


def startup_packet(params, version=0x30000):
    body = struct.pack("!I", version) + b"".join(cstr(k) + cstr(v) for k, v in params.items()) + b"\0"
    return struct.pack("!I", len(body) + 4) + body


def cancel_packet(key):
    return struct.pack("!II", 8 + len(key), CANCEL_REQUEST) + key


def query(sql):
    return msg("Q", cstr(sql))


def parse(name, sql, types=()):
    oids = b"".join(struct.pack("!I", t) for t in types)
    return msg("P", cstr(name) + cstr(sql) + struct.pack("!H", len(types)) + oids)


def bind(portal, name, args=()):
    values = b""
    for a in args:
        raw = None if a is None else str(a).encode()
        values += struct.pack("!i", -1) if raw is None else struct.pack("!i", len(raw)) + raw
    return msg("B", cstr(portal) + cstr(name) + struct.pack("!HH", 0, len(args)) + values + struct.pack("!H", 0))


def describe(kind, name):
    return msg("D", kind.encode() + cstr(name))


def execute(portal="", limit=0):
    return msg("E", cstr(portal) + struct.pack("!I", limit))


def close(kind, name):
    return msg("C", kind.encode() + cstr(name))


SYNC = msg("S")
FLUSH = msg("H")
TERMINATE = msg("X")


class Wire:
    def __init__(self, port, host="127.0.0.1", unix=None, timeout=30, rcvbuf=None, sock=None):
        """sock: not yet connected."""
        self.address = unix or (host, port)
        self.sock = sock or socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
        if rcvbuf:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        self.sock.settimeout(timeout)
        self.sock.connect(self.address)
        if not unix:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buf = bytearray()
        self.key = None
        self.params = {}
        self.auth_seen = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # bytes
    def send(self, *parts):
        try:
            self.sock.sendall(b"".join(parts))
        except (ConnectionResetError, BrokenPipeError):
            raise Closed(bytes(self.buf)) from None

    def send_slowly(self, data, pause=0.0):
        for i in range(len(data)):
            self.sock.sendall(data[i:i + 1])
            if pause:
                time.sleep(pause)

    def exactly(self, n):
        while len(self.buf) < n:
            try:
                got = self.sock.recv(65536)
            except ConnectionResetError:
                got = b""
            if not got:
                raise Closed(bytes(self.buf))
            self.buf += got
        out = bytes(self.buf[:n])
        del self.buf[:n]
        return out

    def at_eof(self):
        """True when the other side closes without another byte (waits for it)."""
        if self.buf:
            return False
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def drop(self):
        """Close with a reset, as a killed client machine would."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def close(self):
        self.sock.close()

    # messages
    def recv(self):
        head = self.exactly(5)
        (size,) = struct.unpack("!I", head[1:])
        return Msg(chr(head[0]), self.exactly(size - 4))

    def until(self, kinds="Z"):
        out = []
        while True:
            m = self.recv()
            out.append(m)
            if m.type in kinds:
                return out

    def until_closed(self):
        out = []
        try:
            while True:
                out.append(self.recv())
        except Closed:
            return out

    def fatal(self):
        """The one FATAL with which the connection must end."""
        out = self.until_closed()
        errors = [m for m in out if m.type == "E"]
        assert len(errors) == 1 and out[-1].type == "E", out
        assert errors[0].fields["S"] == "FATAL", errors[0].fields
        return errors[0]

    # conversations
    def start(self, user="alice", database="p0", version=0x30000, **params):
        self.user = user
        self.send(startup_packet({"user": user, "database": database, **params}, version))
        return self

    def authenticate(self, password=""):
        """Answer whatever is asked; return the messages from the last answer up to ReadyForQuery or the error."""
        while True:
            m = self.recv()
            if m.type == "v":
                self.negotiated = m
                continue
            if m.type != "R":
                return self._welcome(m)
            (kind,) = struct.unpack_from("!I", m.body)
            self.auth_seen.append(kind)
            if kind == 0:
                return self._welcome(self.recv())
            if kind == 3:
                self.send(msg("p", cstr(password)))
            elif kind == 5:
                inner = hashlib.md5(password.encode() + self.user.encode()).hexdigest().encode()
                self.send(msg("p", cstr(b"md5" + hashlib.md5(inner + m.body[4:8]).hexdigest().encode())))
            elif kind == 10:
                self.mechanisms = [x.decode() for x in m.body[4:].split(b"\0") if x]
                failed = self._scram(password)
                if failed:
                    return self._welcome(failed)
            else:
                raise AssertionError(f"authentication request {kind}")

    def _welcome(self, m):
        out = [m]
        while True:
            if m.type == "S":
                name, value = m.body[:-1].split(b"\0")
                self.params[name.decode()] = value.decode()
            elif m.type == "K":
                self.key = m.body
            elif m.type in "ZE":
                return out
            m = self.recv()
            out.append(m)

    def _scram(self, password):
        nonce = base64.b64encode(os.urandom(18)).decode()
        first_bare = f"n=,r={nonce}"
        first = ("n,," + first_bare).encode()
        self.send(msg("p", cstr("SCRAM-SHA-256") + struct.pack("!I", len(first)) + first))
        m = self.recv()
        if m.type != "R":
            return m
        server_first = m.body[4:].decode()
        attrs = dict(x.split("=", 1) for x in server_first.split(","))
        assert attrs["r"].startswith(nonce)
        salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(attrs["s"]), int(attrs["i"]))
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        final = f"c=biws,r={attrs['r']}"
        auth = f"{first_bare},{server_first},{final}".encode()
        signature = hmac.digest(hashlib.sha256(client_key).digest(), auth, "sha256")
        proof = bytes(a ^ b for a, b in zip(client_key, signature))
        self.send(msg("p", f"{final},p={base64.b64encode(proof).decode()}".encode()))
        m = self.recv()
        if m.type != "R":
            return m
        server_key = hmac.digest(salted, b"Server Key", "sha256")
        want = base64.b64encode(hmac.digest(server_key, auth, "sha256"))
        assert m.body[4:] == b"v=" + want, "server signature"
        return None

    def login(self, user="alice", database="p0", password="", **params):
        self.start(user, database, **params)
        out = self.authenticate(password)
        assert out[-1].type == "Z", out[-1].fields
        return self

    def query(self, sql):
        self.send(query(sql))
        return self.until("Z")

    def rows(self, sql):
        out = self.query(sql)
        errors = [m.fields for m in out if m.type == "E"]
        assert not errors, errors
        return [m.row for m in out if m.type == "D"]

    def value(self, sql):
        return self.rows(sql)[0][0]


def cancel(address, key, timeout=60):
    """Send a cancel request and wait, as libpq does, until the other side closes."""
    sock = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
    sock.settimeout(timeout)
    try:
        sock.connect(address)
        sock.sendall(cancel_packet(key))
        try:
            answer = sock.recv(1)
        except ConnectionResetError:
            answer = b""
        assert answer == b"", "a cancel request is never answered"
    finally:
        sock.close()
