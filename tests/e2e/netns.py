"""A network namespace of the test's own, in which packets can be lost. No privilege is needed where users may make user
namespaces; elsewhere Network.missing says why not, and the tests are skipped with that word.

    net = Network(); subprocess.run([*net.prefix, "program"])

Programs that are started with the prefix have this network and their usual user. Unix sockets and files are those of
everybody, so tests talk to the pooler and to PostgreSQL through Unix sockets, while those two talk to each other by TCP.
"""
import os
import shutil
import socket
import subprocess
import sys

import pytest

# What is in a set is dropped when it arrives. "mute" lets connections be made, and swallows what is said then.
RULES = """
table inet lost {
  set gone4 { type ipv4_addr; }
  set gone6 { type ipv6_addr; }
  set mute4 { type ipv4_addr; }
  set mute6 { type ipv6_addr; }
  set some4 { type ipv4_addr; }
  set narrow4 { type ipv4_addr; }
  chain arrives {
    type filter hook input priority 0;
    ip daddr @gone4 drop
    ip saddr @gone4 drop
    ip6 daddr @gone6 drop
    ip6 saddr @gone6 drop
    ip saddr @mute4 tcp flags & psh == psh drop
    ip6 saddr @mute6 tcp flags & psh == psh drop
    ip daddr @narrow4 meta length > 300 drop
    ip saddr @narrow4 meta length > 300 drop
    ip daddr @some4 numgen inc mod 14 < 2 drop
    ip saddr @some4 numgen inc mod 14 < 2 drop
  }
}
"""
PASS_A_SOCKET = """
import socket, sys
made = socket.socket(int(sys.argv[1]), int(sys.argv[2]))
socket.send_fds(socket.socket(fileno=0), [b"s"], [made.fileno()])
"""


def missing():
    """Why there can be no such network here, or None."""
    for tool in ("unshare", "nsenter", "ip", "nft"):
        if not shutil.which(tool, path=PATH):
            return f"{tool} is not installed"
    try:
        Network().close()
    except RuntimeError as e:
        return str(e)
    return None


PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"


class Network:
    def __init__(self, *more):
        """more: addresses besides those of 127.0.0.0/8 and ::1."""
        self.env = {**os.environ, "PATH": PATH}
        # Lives as long as its standard input.
        self.holder = subprocess.Popen(["unshare", "--user", "--map-root-user", "--net", "sh", "-c", "echo here; exec cat"],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                       env=self.env)
        if self.holder.stdout.readline() != "here\n":
            said = self.holder.communicate()[1]
            raise RuntimeError(f"no network namespace may be made: {said.strip()}")
        self.inside = ["nsenter", "--target", str(self.holder.pid), "--user", "--net", "--preserve-credentials", "--"]
        # Not root any more: PostgreSQL and the pooler refuse it.
        self.prefix = [*self.inside, "unshare", "--user", f"--map-user={os.geteuid()}", "--"]
        try:
            self.run("ip", "link", "set", "lo", "up")
            for address in more:
                self.run("ip", "address", "add", address, "dev", "lo", *(["nodad"] if ":" in address else []))
            self.run("nft", "-f", "-", input=RULES)
        except RuntimeError:
            self.close()
            raise

    def close(self):
        self.holder.communicate()

    def run(self, *argv, input=None):
        done = subprocess.run([*self.inside, *argv], input=input, text=True, capture_output=True, env=self.env)
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
        return done.stdout

    def socket(self, family=socket.AF_INET, kind=socket.SOCK_STREAM):
        """A socket of this network in our own process."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            subprocess.run([*self.inside, sys.executable, "-c", PASS_A_SOCKET, str(int(family)), str(int(kind))],
                           stdin=theirs, check=True, env=self.env)
            _, fds, _, _ = socket.recv_fds(ours, 1, 1)
        return socket.socket(fileno=fds[0])

    def _set(self, verb, name, address):
        self.run("nft", verb, "element", "inet", "lost", f"{name}{6 if ':' in address else 4}", f"{{ {address} }}")

    def swallow(self, address):
        """From now on nothing comes from there, and nothing gets there."""
        self._set("add", "gone", address)

    def mute(self, address):
        """It takes connections, and says nothing."""
        self._set("add", "mute", address)

    def lose_some(self, address):
        """One packet in seven, two in a row, each way: not by chance, which may take all of a connection for a minute."""
        self._set("add", "some", address)

    def narrow(self, address):
        """Packets of more than 300 bytes get lost."""
        self._set("add", "narrow", address)

    def heal(self):
        for name in ("gone4", "gone6", "mute4", "mute6", "some4", "narrow4"):
            self.run("nft", "flush", "set", "inet", "lost", name)


@pytest.fixture
def net(the_net):
    """For a module that has a `the_net`: with nothing lost any more when the test is over."""
    yield the_net
    the_net.heal()
