#!/usr/bin/env python3
"""Ranks on separate hosts, with the link of one host slowed. The run must report this host.

The hosts are network namespaces with names of their own, joined by a bridge. `tc` shapes one link to 200 Mbit/s
(a token bucket), and MPICH starts the ranks on them. Takes the built program from $SHARDMARK_PROGRAM and MPICH's
mpiexec from $SHARDMARK_LAUNCHER. Requires root. If the test cannot run, it prints the reason and exits with 77.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.environ["SHARDMARK_PROGRAM"]
LAUNCHER = os.environ.get("SHARDMARK_LAUNCHER", "mpiexec").split()[0]
PREFIX = f"sm{os.getpid() % 10000}"  # interface names have at most 15 characters
BRIDGE = f"{PREFIX}br"
NET = "10.231.77"
HOSTS = ("h1", "h2", "h3", "h4")
# The launcher calls this script instead of ssh, with options, the host and its command.
RUN_THERE = f"""#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1; shift
exec ip netns exec {PREFIX}$host unshare --uts sh -c "hostname $host; exec $*"
"""


def call(*words, check=True):
    return subprocess.run(words, capture_output=True, text=True, timeout=30, check=check)


def build_hosts():
    call("ip", "link", "add", BRIDGE, "type", "bridge")
    call("ip", "addr", "add", f"{NET}.1/24", "dev", BRIDGE)
    call("ip", "link", "set", BRIDGE, "up")
    for number, host in enumerate(HOSTS):
        space, port = PREFIX + host, f"{PREFIX}{host}p"
        call("ip", "netns", "add", space)
        call("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
        call("ip", "link", "set", port, "master", BRIDGE, "up")
        inside = ("ip", "-n", space)
        call(*inside, "addr", "add", f"{NET}.{number + 11}/24", "dev", "eth0")
        call(*inside, "link", "set", "eth0", "up")
        call(*inside, "link", "set", "lo", "up")


def remove_hosts():
    for host in HOSTS:
        call("ip", "netns", "del", PREFIX + host, check=False)
        call("ip", "link", "del", f"{PREFIX}{host}p", check=False)
    call("ip", "link", "del", BRIDGE, check=False)


def shape(host):
    """Slows both directions of a host's only link."""
    bucket = ("root", "tbf", "rate", "200mbit", "burst", "64kb", "latency", "100ms")
    call("tc", "qdisc", "add", "dev", f"{PREFIX}{host}p", *bucket)
    call("ip", "netns", "exec", PREFIX + host, "tc", "qdisc", "add", "dev", "eth0", *bucket)


def why_not():
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    for tool in ("ip", "tc", "unshare"):
        if not shutil.which(tool):
            return f"needs {tool}"
    if "mpich" not in LAUNCHER and "hydra" not in LAUNCHER:
        return f"needs MPICH's launcher, not {LAUNCHER}"
    try:
        build_hosts()
        shape(HOSTS[0])
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"
    finally:
        remove_hosts()
    return ""


class SeparateHosts(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.addCleanup(remove_hosts)
        build_hosts()
        self.script = os.path.join(self.folder.name, "run_there")
        with open(self.script, "w", encoding="utf-8") as file:
            file.write(RUN_THERE)
        os.chmod(self.script, 0o755)

    def links(self, name):
        out = os.path.join(self.folder.name, name)
        done = subprocess.run(
            [LAUNCHER, "-launcher", "ssh", "-launcher-exec", self.script, "-iface", BRIDGE, "-disable-auto-cleanup",
             "-hosts", ",".join(HOSTS), "-n", str(len(HOSTS)), PROGRAM, "run", "link_matrix", "--ranks", str(len(HOSTS)),
             "--transport", "mpi", "--mode", "alone,together", "--bytes", "256KiB", "--max-seconds", "4", "--no-limits",
             "--timeout", "60", "--out", out],
            env={**os.environ, "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"},
            capture_output=True, text=True, timeout=300, check=False, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(os.path.join(out, "run.json"), encoding="utf-8") as file:
            matrices = [case["link_matrix"] for case in json.load(file)["benchmarks"]]
        self.assertTrue(all(matrix["hosts"] == list(HOSTS) for matrix in matrices))
        with open(os.path.join(out, "drain.json"), encoding="utf-8") as file:
            drain = json.load(file)["drain"]
        for matrix in matrices:
            print(f"{name}: {matrix['bandwidth_GBps']}, crowded: {matrix['crowded_hosts']}", file=sys.stderr)
        for entry in drain:
            print(f"{name}: {entry['kind']} {entry['hosts']}: {entry['evidence']}", file=sys.stderr)
        return [(entry["kind"], entry["hosts"]) for entry in drain]

    def test_the_slow_link_is_named(self):
        self.assertEqual(self.links("as they are"), [])
        for host in ("h2", "h4"):
            with self.subTest(host=host):
                shape(host)
                self.assertEqual(self.links(f"{host} slowed"), [("slow link", [host])])
                call("tc", "qdisc", "del", "dev", f"{PREFIX}{host}p", "root")
                call("ip", "netns", "exec", PREFIX + host, "tc", "qdisc", "del", "dev", "eth0", "root")


if __name__ == "__main__":
    if reason := why_not():
        print(f"skipped: {reason}")
        sys.exit(77)
    sys.exit(unittest.main(verbosity=2))
