"""The language of the .conv files (README.md): text -> conversations -> bytes. No I/O here."""
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path

ANSWERS = {  # the words after `<`, and the message each stands for
    "ParseComplete": "1", "BindComplete": "2", "CloseComplete": "3", "Parameters": "t", "Columns": "T", "NoData": "n",
    "Row": "D", "Complete": "C", "Empty": "I", "Suspended": "s", "Error": "E", "Notice": "N", "Ready": "Z",
    "CopyIn": "G", "CopyOut": "H", "CopyData": "d", "CopyDone": "c", "Function": "V", "Notification": "A",
    "Setting": "S", "Closed": "eof",
}
STATUS = {"idle": "I", "open": "T", "failed": "E"}


class Mistake(Exception):
    """The script is wrong."""


@dataclass
class Message:
    """One message of a client, still with {n} and friends in it."""
    verb: str
    args: list
    options: dict = field(default_factory=dict)


@dataclass
class Step:
    who: str  # "a" or "b"
    line: int
    send: list = None  # messages that go out in one write
    wait: list = None  # [(message type, text that must be in it or None)]


@dataclass
class Conversation:
    file: str
    name: str
    line: int
    scenarios: list
    steps: list = field(default_factory=list)
    setup: list = field(default_factory=list)
    session: bool = False  # needs what lives longer than a transaction
    alone: bool = False  # needs the same server in each transaction
    whole: bool = False  # one client waits for what another does: no step can be left out
    differs: list = field(default_factory=list)  # [(difference, modes or None for all)]

    @property
    def two(self):
        return any(s.who == "b" for s in self.steps)

    def mentions(self, text):
        words = list(self.setup)
        for step in self.steps:
            for m in step.send or []:
                words += [a for arg in m.args for a in (arg if isinstance(arg, list) else [arg]) if a is not None]
            words += [t for _, t in step.wait or [] if t]
        return any(text in w for w in words)


# ------------------------------------------------------------------------------------------------ text to steps

TOKEN = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([;,\[\]])|([^\s;,\[\]"]+))', re.S)
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}


def tokens(text):
    """[(kind, value)]: kind is `string`, `mark` or `word`."""
    at, out = 0, []
    text = text.rstrip()
    while at < len(text):
        m = TOKEN.match(text, at)
        if not m:
            raise Mistake(f"cannot read {text[at:]!r}")
        at = m.end()
        if m[1] is not None:
            out.append(("string", re.sub(r"\\(.)", lambda e: ESCAPES.get(e[1], e[1]), m[1], flags=re.S)))
        else:
            out.append(("mark", m[2]) if m[2] else ("word", m[3]))
    return out


def split(toks, mark):
    part, depth = [], 0
    for t in toks:
        if t[0] == "mark" and t[1] in "[]":
            depth += 1 if t[1] == "[" else -1
        if t == ("mark", mark) and not depth:
            yield part
            part = []
        else:
            part.append(t)
    yield part


def read_message(toks):
    if not toks or toks[0][0] != "word":
        raise Mistake("a message begins with its name")
    verb, args, options, inside = toks[0][1], [], {}, None
    for kind, value in toks[1:]:
        if kind == "mark":
            if value == "[":
                inside = []
            elif value == "]":
                args.append(inside)
                inside = None
        elif inside is not None:
            inside.append(None if (kind, value) == ("word", "null") else value)
        elif kind == "word" and "=" in value and verb in ("Bind", "Execute"):
            key, _, number = value.partition("=")
            options[key] = number
        else:
            args.append(value)
    message = Message(verb, args, options)
    encode(message, Values(0))  # complain now
    return message


def read_wait(toks):
    if not toks or toks[0][1] not in ANSWERS:
        raise Mistake(f"{toks[0][1] if toks else 'nothing'} is no answer")
    kind, text = ANSWERS[toks[0][1]], toks[1][1] if len(toks) > 1 else None
    if kind == "Z" and text:
        text = STATUS[text]
    return kind, text


def read_file(path):
    out = []
    lines = []
    for number, raw in enumerate(Path(path).read_text().splitlines(), 1):
        if raw.startswith("#") or not raw.strip():
            continue
        if raw[0].isspace() and lines:  # goes on from the line before
            lines[-1][1] += " " + raw.strip()
        else:
            lines.append([number, raw.rstrip()])
    for number, text in lines:
        try:
            if text.startswith("== "):
                m = re.fullmatch(r"== (?:([\d, ]+): )?(.+)", text)
                scenarios = [int(x) for x in (m[1] or "").replace(",", " ").split()]
                out.append(Conversation(Path(path).name, m[2], number, scenarios))
                continue
            word, _, rest = text.partition(" ")
            now = out[-1]
            if word in (">", "a>", "b>"):
                step = Step("b" if word[0] == "b" else "a", number)
                step.send = [read_message(t) for t in split(tokens(rest), ";")]
                now.steps.append(step)
            elif word in ("<", "a<", "b<"):
                step = Step("b" if word[0] == "b" else "a", number)
                step.wait = [read_wait(t) for t in split(tokens(rest), ",")]
                now.steps.append(step)
            elif word == "setup":
                now.setup.append(rest)
            elif text == "needs session":
                now.session = True
            elif text == "needs each step":
                now.whole = True
            elif text == "needs to be alone":
                now.alone = True
            elif word == "differs":
                name, _, modes = rest.partition(" in ")
                now.differs.append((name, modes.replace(",", " ").split() or None))
            else:
                raise Mistake(f"what is {word!r}?")
        except (Mistake, KeyError, ValueError, IndexError, TypeError, struct.error) as e:
            raise Mistake(f"{path}:{number}: {e}") from e
    return out


# ------------------------------------------------------------------------------------------------ values of a run

class Values:
    """{n} and {m}: two numbers that no other run has, so that a crossed answer shows. {t}: a table of this run."""

    def __init__(self, number):
        self.n, self.m = str(100_000_000 + number), str(600_000_000 + number)

    def fill(self, text):
        if "{" not in text:
            return text
        text = text.replace("{n}", self.n).replace("{m}", self.m).replace("{t}", "t" + self.n)
        return re.sub(r"\{(.)\*(\d+)\}", lambda m: m[1] * int(m[2]), text)

    def forget(self, text):
        """The same text for every run."""
        return text.replace(self.n, "{n}").replace(self.m, "{m}")


# ------------------------------------------------------------------------------------------------ messages to bytes

def frame(kind, body=b""):
    return kind + struct.pack("!I", len(body) + 4) + body


def cstr(text):
    return text.encode() + b"\0"


def counted(values, v):
    out = struct.pack("!H", len(values))
    for x in values:
        if x is None:
            out += struct.pack("!i", -1)
        else:
            x = v.fill(x)
            raw = bytes.fromhex(x[2:]) if x.startswith("\\x") else x.encode()
            out += struct.pack("!i", len(raw)) + raw
    return out


def formats(text):
    codes = [int(x) for x in text.split("/")] if text else []
    return struct.pack(f"!H{len(codes)}H", len(codes), *codes)


def encode(m, v):
    a = [v.fill(x) if isinstance(x, str) else x for x in m.args]
    at = lambda i, default="": a[i] if len(a) > i else default  # noqa: E731
    if m.verb == "Query":
        return frame(b"Q", cstr(a[0]))
    if m.verb == "Parse":
        oids = [int(x) for x in at(2, [])]
        return frame(b"P", cstr(a[0]) + cstr(a[1]) + struct.pack(f"!H{len(oids)}I", len(oids), *oids))
    if m.verb == "Bind":
        return frame(b"B", cstr(at(0)) + cstr(at(1)) + formats(m.options.get("in")) + counted(at(2, []), v)
                     + formats(m.options.get("out")))
    if m.verb in ("Describe", "Close"):
        kind = {"statement": b"S", "portal": b"P"}[a[0]]
        return frame(m.verb[:1].encode(), kind + cstr(at(1)))
    if m.verb == "Execute":
        return frame(b"E", cstr(at(0)) + struct.pack("!I", int(m.options.get("max", 0))))
    if m.verb == "FunctionCall":
        return frame(b"F", struct.pack("!I", int(a[0])) + formats(None) + counted(at(1, []), v) + struct.pack("!H", 0))
    if m.verb == "CopyData":
        return frame(b"d", a[0].encode())
    if m.verb == "CopyFail":
        return frame(b"f", cstr(a[0]))
    if m.verb == "Raw":
        return bytes.fromhex("".join(a))
    if m.verb == "Hangup":
        return b""
    plain = {"Sync": b"S", "Flush": b"H", "Terminate": b"X", "CopyDone": b"c"}
    if m.verb not in plain:
        raise Mistake(f"{m.verb} is no message")
    return frame(plain[m.verb])
