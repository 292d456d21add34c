"""A name server on 127.0.0.1 for tests: answers A, AAAA and SOA questions from a dict that a test may change."""
import collections
import ipaddress
import socket
import struct
import threading

A, SOA, AAAA = 1, 6, 28


def labels(name):
    return b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0"


class Dns:
    """hosts: name -> list of addresses; a name that is not there does not exist. silent: names without any answer.
    servfail: names that fail. serials: zone -> number. asked: how often each (name, type) was asked for."""

    def __init__(self, sock=None):
        self.hosts, self.serials, self.silent, self.servfail = {}, {}, set(), set()
        self.asked = collections.Counter()
        self.ttl = 1
        self.socket = sock or socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        while True:
            try:
                question, peer = self.socket.recvfrom(4096)
            except OSError:
                return
            if not question:
                return
            answer = self.answer(question)
            if answer:
                self.socket.sendto(answer, peer)

    def answer(self, question):
        at, parts = 12, []
        while question[at]:
            parts.append(question[at + 1:at + 1 + question[at]].decode())
            at += 1 + question[at]
        name, (kind,) = ".".join(parts), struct.unpack_from(">H", question, at + 1)
        self.asked[name, kind] += 1
        if name in self.silent:
            return None
        records = []
        if kind == SOA and name in self.serials:
            records = [labels("ns") + labels("root") + struct.pack(">5I", self.serials[name], 1, 1, 1, 1)]
        for address in self.hosts.get(name, []):
            ip = ipaddress.ip_address(address)
            if kind == (A if ip.version == 4 else AAAA):
                records.append(ip.packed)
        known = name in self.hosts or name in self.serials
        head = question[:2] + struct.pack(">5H", 0x8180 | (2 if name in self.servfail else 0 if known else 3), 1, len(records), 0, 0)
        return head + question[12:at + 5] + b"".join(
            b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, self.ttl, len(r)) + r for r in records)

    def close(self):
        # A datagram of nothing ends the thread; closing alone would not wake it.
        self.socket.sendto(b"", ("127.0.0.1", self.port))
        self.thread.join()
        self.socket.close()
