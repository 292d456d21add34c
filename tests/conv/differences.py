"""Everything in which an answer through pgflotilla may differ from PostgreSQL's own. Nothing else may.

A conversation that shows one of them says so (`differs NAME in MODES`); one that says so and does not is an error, and
so is an entry here that no conversation shows.
"""
import re
from dataclasses import dataclass
from typing import Callable


UNNAMED = "unnamed prepared statement does not exist"


@dataclass(frozen=True)
class Difference:
    name: str
    reason: str
    # (mode, what PostgreSQL says from the first different message on, what we say from there, what both said before)
    # -> is it this one?
    applies: Callable
    ends: bool = True  # the connection is over; else only this one message differs


def ends_with(ours, code, text):
    """The pooler's one FATAL, and the end; in the middle of a message of the server there is no place for a FATAL."""
    if ours == [("eof", "in the middle of a message")]:
        return True
    return len(ours) == 2 and ours[0][:3] == ("E", "FATAL", code) and ours[0][3] == text and ours[1][0] == "eof"


def error_ahead(direct, code):
    return any(m[0] == "E" and m[2] == code for m in direct)


def fatal_for(code, text, ours_code="08P01"):
    """Where PostgreSQL answers with that error, or before, we end the connection. Before: the pooler sees the mistake
    when it reads the message, perhaps with answers to earlier messages of the same write still under way."""
    def applies(mode, direct, ours, _):
        return mode.tracking and ends_with(ours, ours_code, text) and error_ahead(direct, code)
    return applies


def statement_mode(mode, direct, ours, _):
    return mode.name == "statement" and ends_with(
        ours, "08P01", "transaction blocks not allowed in statement pooling mode") and direct[0][0] == "Z" \
        and direct[0][1] != "I"


def unknown_message(mode, direct, ours, _):
    return ends_with(ours, "08P01", "unknown pkt") and direct[0][:3] == ("E", "FATAL", "08P01") \
        and "invalid frontend message type" in direct[0][3]


def bad_length(mode, direct, ours, _):
    """PostgreSQL says this to its log only (COMMERROR)."""
    return len(ours) == 2 and ours[0][:3] == ("E", "FATAL", "08P01") and ours[0][3].startswith("bad packet header") \
        and direct[0][0] == "eof"


def judged_early(mode, direct, ours, before):
    since_ready = []
    for m in before:
        since_ready = [] if m[0] == "Z" else since_ready + [m]
    return mode.tracking and any(m[0] == "E" for m in since_ready + direct) and (
        ends_with(ours, "08P01", "prepared statement did not exist")
        or ends_with(ours, "08P01", "prepared statement name is already in use"))


def unnamed_text(mode, direct, ours, _):
    return mode.pool_mode != "session" and direct[0][:4] == ("E", "ERROR", "26000", UNNAMED) and \
        ours[0][:4] == ("E", "ERROR", "26000", UNNAMED.replace("unnamed prepared statement", 'prepared statement "PGBOUNCER_0"'))


def parsed_again(mode, direct, ours, _):
    """The error is that of the Parse, which is tried again."""
    return mode.tracking and direct[0][0] == ours[0][0] == "E" and direct[0][2] == "26000" \
        and direct[0][3].startswith("prepared statement") and ours[0][1] == "ERROR"


def parsed_later(mode, direct, ours, _):
    return mode.tracking and direct[0][0] == "E" and direct[0][2] == "26000" \
        and direct[0][3].startswith("prepared statement") and ours[0][0] in "2tT" and ours[-1] == ("Z", "I")


def server_name(mode, direct, ours, _):
    """Same message but for the statement's name."""
    if not (mode.tracking and direct and ours and direct[0][0] == ours[0][0] == "E"):
        return False
    pattern = re.compile(r'"PGBOUNCER_\d+"')
    if len(direct[0]) != len(ours[0]) or direct[0][1:3] != ours[0][1:3]:
        return False
    for theirs, mine in zip(direct[0][3:], ours[0][3:]):
        if theirs != mine and "…" not in theirs and not re.fullmatch(re.escape(pattern.sub("\0", mine)).replace("\0", '"[^"]*"')
                                               .replace("\\\x00", '"[^"]*"'), theirs):
            return False
    return True


TABLE = [
    Difference("statement-mode", "Statement pooling refuses transactions: at the first ReadyForQuery that is not idle the "
               "client is sent away, as PgBouncer does.", statement_mode),
    Difference("statement-unknown", "With max_prepared_statements, Bind or Describe of a name that was never prepared "
               "ends the connection (PgBouncer's text and severity; PostgreSQL: ERROR 26000).",
               fatal_for("26000", "prepared statement did not exist")),
    Difference("statement-in-use", "With max_prepared_statements, Parse of a name that is taken ends the connection "
               "(PgBouncer's text and severity; PostgreSQL: ERROR 42P05).",
               fatal_for("42P05", "prepared statement name is already in use")),
    Difference("judged-early", "With max_prepared_statements, names are judged when the message is read. If an error that is "
               "still under way makes PostgreSQL skip a Parse or a Close, what stands behind its Sync in the same pipeline "
               "is judged as if the skipped message had worked, and the connection ends.", judged_early),
    Difference("server-name", "With max_prepared_statements, an error text that names a statement names it as the server "
               "knows it (PGBOUNCER_n). Streamed error texts are not rewritten.", server_name, ends=False),
    Difference("unnamed-text", "Where servers are shared, a client that has no unnamed statement is kept from its neighbour's by a "
               "name that nobody has. Same SQLSTATE, other text.", unnamed_text, ends=False),
    Difference("parsed-again", "With max_prepared_statements, Bind or Describe of a name whose Parse failed tries the Parse again: "
               "its error comes again (PostgreSQL: 26000).", parsed_again, ends=False),
    Difference("parsed-later", "With max_prepared_statements, Bind or Describe of a name whose Parse failed or was skipped after an "
               "error works, if the Parse works now (PostgreSQL: 26000).", parsed_later),
    Difference("unknown-message", "A message type that no client may send ends the connection with PgBouncer's text.",
               unknown_message),
    Difference("bad-length", "A message length below 4 ends the connection with PgBouncer's FATAL; PostgreSQL just closes.",
               bad_length),
]
BY_NAME = {d.name: d for d in TABLE}


def compare(mode, direct, ours):
    """Names of the differences between two lists of messages, and the index of the first unexplained one or None."""
    used, i = set(), 0
    while i < len(direct) or i < len(ours):
        if i < len(direct) and i < len(ours) and direct[i] == ours[i]:
            i += 1
            continue
        if i >= len(direct) or i >= len(ours):
            return used, i
        d = next((d for d in TABLE if d.applies(mode, direct[i:], ours[i:], direct[:i])), None)
        if d is None:
            return used, i
        used.add(d.name)
        if d.ends:
            return used, None
        i += 1
    return used, None
