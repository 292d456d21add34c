"""Plays a conversation on a Unix socket and notes what the server says, in a form that is the same for every run."""
import contextlib
import fcntl
import hashlib
import os
import re
import socket
import struct
import termios
import time

from script import Values, encode, frame

TIMEOUT = float(os.environ.get("CONV_TIMEOUT", 20))  # only a hang guard
# Numbers that are a matter of luck: in texts about deadlocks, and how far a COPY had read when it was broken off.
NUMBERED = re.compile(r"\b(process|transaction|COPY \S+, line(?= \d+$)) \d+", re.I)
END = ("D", ("the end of {n}",))


class Hang(Exception):
    """An answer did not come."""


class Unexpected(AssertionError):
    """The script says otherwise."""


def unread(sock):
    """Bytes sent on a Unix socket that the other side has not read yet (TCP cannot tell)."""
    return struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, b"\0\0\0\0"))[0]


def send_apart(sock, pieces):
    """Each piece is a read of its own for the other side: the next one is sent when it has been taken."""
    for i, piece in enumerate(pieces):
        if i:
            tries = 0
            while unread(sock):
                tries += 1
                if tries > 60:  # it does not read now (back-pressure): no cut can be had here
                    break
                time.sleep(0 if tries < 40 else 0.0005)
        sock.sendall(piece)


def whole(data):
    return [data]


def cut_at(positions):
    def pieces(data):
        marks = [0, *(p for p in positions if 0 < p < len(data)), len(data)]
        return [data[a:b] for a, b in zip(marks, marks[1:])]
    return pieces


def cut_every(distance, first):
    """Cuts at first, first + distance, ... In long texts only near both ends: the middle is all alike."""
    def pieces(data):
        size = len(data)
        marks = [p for p in range(first, size, distance) if p < 600 or p > size - 60]
        return cut_at(marks)(data)
    return pieces


def cstrings(body):
    return [x.decode("utf-8", "replace") for x in body.split(b"\0")]


class Client:
    def __init__(self, path, database, user="alice", timeout=None, **params):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(timeout or TIMEOUT)
        self.sock.connect(path)
        self.buf = bytearray()
        self.heard = []
        self.closed = False
        self.error_since_ready = False
        body = struct.pack("!I", 0x30000)
        for k, v in {"user": user, "database": database, **params}.items():
            body += k.encode() + b"\0" + v.encode() + b"\0"
        self.sock.sendall(struct.pack("!I", len(body) + 5) + body + b"\0")
        while True:
            kind, body = self.message()
            if kind == "Z":
                break
            assert kind not in ("E", "eof"), f"login failed: {body!r}"

    def message(self):
        buf = self.buf
        while True:
            if len(buf) >= 5:
                size = struct.unpack_from("!I", buf, 1)[0] + 1
                if len(buf) >= size:
                    kind, body = chr(buf[0]), bytes(buf[5:size])
                    del buf[:size]
                    return kind, body
            try:
                got = self.sock.recv(262144)
            except (ConnectionResetError, BrokenPipeError):
                got = b""
            except TimeoutError:
                raise Hang() from None
            if not got:
                self.closed = True
                return "eof", b"in the middle of a message" if buf else b""
            buf += got

    def send(self, data, pieces=whole):
        if self.closed or not data:
            return
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):  # reading will tell
            send_apart(self.sock, pieces(data))

    def close(self):
        self.closed = True
        self.sock.close()

    def hear(self, values):
        """One message, noted."""
        kind, body = self.message()
        noted = note(kind, body, values)
        self.heard.append(noted)
        if kind == "E":
            self.error_since_ready = True
        elif kind == "Z":
            self.error_since_ready = False
        return noted

    def ask(self, sql):
        """Rows of a query (for the runner's own questions), and the status behind it."""
        self.send(frame(b"Q", sql.encode() + b"\0"))
        rows, wrong = [], None
        while True:
            kind, body = self.message()
            if kind in ("E", "eof"):
                wrong = body
            if kind == "D":
                rows.append(row(body))
            if kind in ("Z", "eof"):
                assert wrong is None, f"{sql}: {wrong!r}"
                return rows, body.decode()


def row(body):
    (n,) = struct.unpack_from("!H", body)
    at, out = 2, []
    for _ in range(n):
        (size,) = struct.unpack_from("!i", body, at)
        at += 4
        out.append(None if size < 0 else body[at:at + size].decode("utf-8", "backslashreplace"))
        at += max(size, 0)
    return out


def short(text):
    if text is None or len(text) < 300:
        return text
    return f"{text[:40]}… {len(text)} characters, {hashlib.sha1(text.encode()).hexdigest()}"


def note(kind, body, values):
    """A message as a tuple: the type, and what has to be the same whoever serves it."""
    say = lambda x: short(values.forget(x)) if x is not None else None  # noqa: E731
    if kind == "D":
        return kind, tuple(say(x) for x in row(body))
    if kind == "C":
        return kind, say(body[:-1].decode())
    if kind == "Z":
        return kind, body.decode()
    if kind in "EN":
        fields = {x[0]: NUMBERED.sub(r"\1 …", x[1:]) for x in cstrings(body) if x}
        # Where in PostgreSQL's source it arose (F, L, R) is no business of the client.
        return (kind, fields["S"], fields["C"], say(fields["M"]),
                *(f"{k}: {say(fields[k])}" for k in "DHPpqWstcdn" if k in fields))
    if kind == "T":
        (n,) = struct.unpack_from("!H", body)
        at, out = 2, []
        for _ in range(n):
            end = body.index(b"\0", at)
            _, column, oid, size, modifier, form = struct.unpack_from("!IhIhih", body, end + 1)
            out.append((say(body[at:end].decode()), column, oid, size, modifier, form))
            at = end + 19
        return kind, tuple(out)
    if kind == "t":
        (n,) = struct.unpack_from("!H", body)
        return kind, struct.unpack_from(f"!{n}I", body, 2)
    if kind == "V":
        return kind, say(body[4:].decode("latin-1"))
    if kind == "A":  # whose pid it was differs from run to run
        return kind, *(say(x) for x in cstrings(body[4:])[:2])
    if kind == "S":
        return kind, *(say(x) for x in cstrings(body)[:2])
    return kind, say(body.decode("latin-1"))


def matches(noted, kind, text, values):
    if noted[0] != kind:
        return False
    if text is None:
        return True
    text = values.forget(values.fill(text))
    flat = [str(x) for part in noted[1:] for x in (part if isinstance(part, tuple) else (part,))]
    return any(text == x or (kind in "ENSTA" and text in x) for x in flat)


class Play:
    """One run of a conversation. `change(step, message, index)` may give other messages instead of one (each step
    failing); `stop_at` (step, how much of it) makes client a vanish there. strict: the words after `<` must come true."""

    def __init__(self, conversation, path, database, number, pieces=whole, change=None, stop_at=None, strict=True,
                 merge=False, timeout=None):
        self.conversation, self.path, self.database = conversation, path, database
        self.values = Values(number)
        self.pieces, self.change, self.stop_at, self.strict, self.merge = pieces, change, stop_at, strict, merge
        self.timeout = timeout
        self.clients = {}

    def client(self, who):
        if who not in self.clients:
            self.clients[who] = Client(self.path, self.database, timeout=self.timeout)
        return self.clients[who]

    def run(self):
        try:
            self.client("a")
            held = b""
            steps = self.conversation.steps
            for i, step in enumerate(steps):
                if step.wait is not None:
                    self.wait(self.client(step.who), step)
                    continue
                client = self.client(step.who)
                data, hang_up = held, False
                for j, m in enumerate(step.send):
                    for changed in (self.change(i, j, m) if self.change else [m]):
                        data += encode(changed, self.values)
                    hang_up |= m.verb in ("Hangup", "Terminate")
                held = b""
                if self.stop_at and self.stop_at[0] == i:
                    client.send(data[:int(len(data) * self.stop_at[1])])
                    break
                if self.merge and not hang_up and i + 1 < len(steps) and steps[i + 1].send and \
                        steps[i + 1].who == step.who:
                    held = data
                    continue
                client.send(data, self.pieces)
                if hang_up:
                    if step.send[-1].verb == "Hangup":
                        client.close()
                    else:
                        self.until_closed(client)
            if not self.stop_at:
                self.finish()
            return {who: c.heard for who, c in self.clients.items()}
        finally:
            for c in self.clients.values():
                c.sock.close()

    def until_closed(self, client):
        """After Terminate: what was still said before is a matter of luck, the end is not."""
        while not client.closed:
            client.message()

    def wait(self, client, step):
        wanted = step.wait
        if not self.strict:  # a step failed: other answers come, but each ReadyForQuery still does
            last = max((i for i, (k, _) in enumerate(wanted) if k == "Z"), default=-1)
            wanted = [w for w in wanted[:last + 1] if w[0] == "Z"] + [w for w in wanted[last + 1:] if w[0] != "eof"]
        for kind, text in wanted:
            if client.closed:
                if kind == "eof" or not self.strict:
                    continue
                raise Unexpected(f"line {step.line}: closed while waiting for {kind} {text or ''}")
            if not self.strict and kind not in ("Z", "eof") and client.error_since_ready:
                continue
            while True:
                noted = client.hear(self.values)
                if noted[0] == "eof":
                    break
                if self.strict and matches(noted, kind, text, self.values):
                    break
                if self.strict and noted[0] == "Z":  # a search does not go past it
                    raise Unexpected(f"line {step.line}: waited for {kind} {text or ''}, got {noted}")
                if not self.strict and (noted[0] == kind or noted[0] == "E" and kind not in ("Z", "eof")):
                    break
            if self.strict and client.closed and kind != "eof":
                raise Unexpected(f"line {step.line}: closed while waiting for {kind} {text or ''}")

    def finish(self):
        """Whatever is still owed comes before the answer to this last question: it shows that all is in step."""
        for client in self.clients.values():
            if client.closed:
                continue
            end = frame(b"Q", f"rollback; select 'the end of {self.values.n}'\0".encode())
            copies = any(m.verb.startswith("Copy") for s in self.conversation.steps for m in s.send or [])
            client.send((frame(b"f", b"end\0") if copies else b"") + frame(b"S") + end)
            while client.hear(self.values) not in (END, ("eof", "")):
                pass
            if not client.closed:
                while client.hear(self.values)[0] not in ("Z", "eof"):
                    pass


def show(heard):
    return "\n".join("    " + " ".join(str(x) for x in m) for m in heard)
