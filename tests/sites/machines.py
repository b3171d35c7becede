"""Machines to run jobs on: a real sshd each, with folders, GPUs and a boot of its own.

`LoopbackMachine` is an sshd on this machine and needs no rights. `NamespaceMachine` has a network,
a process table and a boot id of its own: its cable can be pulled, and it can lose power.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.harness import PYTHON_PATH, Job, Story, is_running, wait_for

GPUS = "virtual:2x512MiB"
MARK = "NO SSHD"
_SBIN = "/usr/sbin:/sbin:/usr/bin:/bin"
_MARK = b"XDG_TEST_MACHINE="  # of a kind that jobs get from their machine
LISTENS = "0A"  # in /proc/net/tcp
_numbers = itertools.count(1)


@functools.cache
def sshd() -> str:
    """Return the path of sshd, which must be absolute; skip where there is none."""
    found = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:{_SBIN}")
    if found is None or shutil.which("ssh") is None:
        pytest.skip(f"{MARK}: install openssh-server and openssh-client")
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # as its package does at boot
    return found


@functools.cache
def namespaces_needed() -> None:
    """Skip where machines of their own cannot be made."""
    sshd()
    if os.geteuid() != 0:
        pytest.skip("NOT ROOT: no machine lost its power or its network")
    name = f"grn-probe-{os.getpid()}"
    tried = _try("ip", "netns", "add", name)
    try:
        tried = tried or _try("ip", "netns", "exec", name, "unshare", "--mount", "--pid", "--fork",
                              "--uts", "--mount-proc", "true")  # fmt: skip
    finally:
        _try("ip", "netns", "del", name)
    if tried:
        pytest.skip(f"NO NAMESPACES: no machine lost its power or its network: {tried}")


def _try(*command: str) -> str:
    """Run a command; return why it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return f"there is no {command[0]}"
    return "" if done.returncode == 0 else done.stderr.strip() or f"status {done.returncode}"


def _do(*command: str) -> None:
    trouble = _try(*command)
    assert not trouble, f"{' '.join(command)}: {trouble}"


class Keys:
    """The keys and the ssh settings of one story; every machine of it lets the user in."""

    def __init__(self, story: Story) -> None:
        sshd()
        self.folder = story.folder / "ssh"
        self.folder.mkdir()
        self.config = self.folder / "config"
        for name in ("user", "host"):
            path = str(self.folder / name)
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
        (self.folder / "authorized").write_text((self.folder / "user.pub").read_text())
        self.config.touch()

    def note(self, name: str, address: str, port: int) -> None:
        """Let `ssh -F CONFIG NAME` reach a machine."""
        host_key = (self.folder / "host.pub").read_text().split()[:2]
        known = self.folder / "known_hosts"
        with known.open("a") as file:
            file.write(f"[{address}]:{port} {' '.join(host_key)}\n")
            if port == 22:
                file.write(f"{address} {' '.join(host_key)}\n")
        with self.config.open("a") as file:
            file.write(
                f"Host {name}\n  HostName {address}\n  Port {port}\n"
                f"  IdentityFile {self.folder / 'user'}\n  UserKnownHostsFile {known}\n"
                "  StrictHostKeyChecking yes\n  LogLevel ERROR\n  IdentitiesOnly yes\n"
            )


class Machine:
    """What both kinds share: folders, variables, processes."""

    def __init__(self, story: Story, keys: Keys, name: str, env: Mapping[str, str]) -> None:
        self.story = story
        self.keys = keys
        self.name = name
        self.folder = story.folder / name
        self.folder.mkdir()
        self.env = {
            "GRN_RUNTIME_DIR": str(self.folder / "run"),
            "GRN_STATE_DIR": str(self.folder / "state"),
            "GRN_CONFIG": str(self.folder / "config.toml"),
            "GRN_GPUS": GPUS,
            "GRN_SAMPLE_S": "0.1",
            "GRN_GRACE_S": "0.3",
            "GRN_GRACE_TO_END_S": "1",
            "PYTHONPATH": PYTHON_PATH,
            "PATH": f"{os.path.dirname(sys.executable)}:{_SBIN}",
            "HOME": str(self.folder),  # without the user's own dot files
            "STORY": str(story.folder),
            "XDG_TEST_MACHINE": name,
            **env,
        }
        self._sshd: Job | None = None

    @property
    def runtime(self) -> Path:
        return Path(self.env["GRN_RUNTIME_DIR"])

    @property
    def state(self) -> Path:
        return Path(self.env["GRN_STATE_DIR"])

    def _write_config(self, address: str, port: int) -> Path:
        pairs = " ".join(f'"{name}={value}"' for name, value in self.env.items())
        path = self.folder / "sshd_config"
        path.write_text(
            f"ListenAddress {address}:{port}\nHostKey {self.keys.folder / 'host'}\n"
            f"AuthorizedKeysFile {self.keys.folder / 'authorized'}\nPidFile none\n"
            "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
            f"MaxStartups 100:30:200\nSetEnv {pairs}\n"
        )
        return path

    def processes(self) -> list[int]:
        """Return all processes that belong to this machine."""
        return [pid for pid in self.story.left_behind() if machine_of(pid) == self.name]

    def _running(self, *words: bytes) -> list[int]:
        found = []
        for pid in self.processes():
            line = _command_line(pid)
            if any(word in line for word in words) and not any(b"forker" in one for one in line):
                found.append(pid)
        return found

    def agents(self) -> list[int]:
        return self._running(b"grn.queue.sites.agent.process")

    def pipes(self) -> list[int]:
        return self._running(b"grn.queue.sites.agent.pipe")

    def negotiators(self) -> list[int]:
        return self._running(b"grn.negotiator")

    def kill(self, pids: list[int]) -> int:
        """Kill processes of this machine; return how many were there."""
        count = 0
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
                count += 1
            except ProcessLookupError:
                continue
        wait_for(lambda: not any(map(is_running, pids)), f"{pids} to end")
        return count

    def grn_env(self) -> dict[str, str]:
        """Return the variables under which this process would reach the machine's negotiator."""
        return {name: value for name, value in self.env.items() if name.startswith("GRN_")}

    def agent_log(self) -> str:
        path = self.state / "agent.log"
        return path.read_text()[-3000:] if path.exists() else ""

    def start(self) -> None:
        """Boot it, or let it be reached again."""
        raise NotImplementedError

    def cut(self) -> None:
        """Let nobody reach it; what runs goes on."""
        raise NotImplementedError

    def lose_power(self) -> None:
        """End every process of it at once."""
        raise NotImplementedError


class LoopbackMachine(Machine):
    """An sshd on this machine; its commands have variables of their own."""

    def __init__(
        self, story: Story, keys: Keys, name: str, env: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(story, keys, name, env or {})
        self.port = _free_port()
        self._lives = 0
        keys.note(name, "127.0.0.1", self.port)

    def start(self) -> None:
        config = self._write_config("127.0.0.1", self.port)
        self._sshd = self.story.start(sshd(), "-D", "-e", "-f", config)
        wait_for(self._is_listening, lambda: self._sshd and self._sshd.err)

    def _is_listening(self) -> bool:
        assert self._sshd is not None
        assert self._sshd.is_running, self._sshd.err
        return "Server listening" in self._sshd.err

    def lose_power(self) -> None:
        """End every process of it at once; it comes back with another life."""
        self.cut()
        self.kill(self.processes())
        self._lives += 1
        self.env["GRN_ALLOCATION"] = f"life{self._lives}"  # its boot cannot be another
        shutil.rmtree(self.runtime, ignore_errors=True)

    def cut(self) -> None:
        """Refuse new connections and end the open ones; what runs goes on."""
        if self._sshd is not None and self._sshd.is_running:
            sessions = [pid for pid in _below(self._sshd.pid) if _is_sshd(pid)]
            self._sshd.kill()
            self.kill(sessions)


class NamespaceMachine(Machine):
    """A machine with its own network, process table, host name and boot id."""

    def __init__(
        self, story: Story, keys: Keys, name: str, env: Mapping[str, str] | None = None
    ) -> None:
        namespaces_needed()
        super().__init__(story, keys, name, env or {})
        chance = random.SystemRandom()
        number = f"{os.getpid() % 100000}{next(_numbers)}"
        self._space = f"grn-{number}"
        self._ours, self._theirs = f"gh{number}", f"gn{number}"
        network = f"10.{chance.randrange(128, 250)}.{chance.randrange(250)}"
        offset = 4 * chance.randrange(60)
        home, self.address = f"{network}.{offset + 1}", f"{network}.{offset + 2}"
        _do("ip", "netns", "add", self._space)
        _do("ip", "link", "add", self._ours, "type", "veth", "peer", "name", self._theirs,
            "netns", self._space)  # fmt: skip
        _do("ip", "addr", "add", f"{home}/30", "dev", self._ours)
        self._inside("ip", "addr", "add", f"{self.address}/30", "dev", self._theirs)
        self._inside("ip", "link", "set", "lo", "up")
        _do("ip", "link", "set", self._ours, "up")
        self.boot = ""  # the id of its boot
        self.is_cut = False
        self.connect()
        keys.note(name, self.address, 22)

    def _inside(self, *command: str) -> None:
        _do("ip", "netns", "exec", self._space, *command)

    def connect(self) -> None:
        """Plug its network cable in."""
        self._inside("ip", "link", "set", self._theirs, "up")
        self.is_cut = False

    def cut(self) -> None:
        """Pull its network cable: nothing gets through, and nobody is told."""
        self._inside("ip", "link", "set", self._theirs, "down")
        self.is_cut = True

    def start(self) -> None:
        """Boot it: another boot id, and nothing left in its runtime folder."""
        shutil.rmtree(self.runtime, ignore_errors=True)
        self.boot = str(uuid.uuid4())
        boot = self.folder / "boot_id"
        boot.write_text(f"{self.boot}\n")
        config = self._write_config(self.address, 22)
        script = (
            f"mount --bind {boot} /proc/sys/kernel/random/boot_id && hostname {self.name} &&"
            f" {{ {sshd()} -D -e -f {config} & wait; }}"
        )
        self._sshd = self.story.start(
            "ip", "netns", "exec", self._space, "unshare", "--mount", "--pid", "--uts", "--fork",
            "--kill-child=SIGKILL", "--mount-proc", "/bin/sh", "-c", script,
            env={"XDG_TEST_MACHINE": self.name},
        )  # fmt: skip
        wait_for(self._is_listening, lambda: self._sshd and self._sshd.err)

    def _is_listening(self) -> bool:
        assert self._sshd is not None
        assert self._sshd.is_running, self._sshd.err
        return "Server listening" in self._sshd.err

    @property
    def is_on(self) -> bool:
        return self._sshd is not None and self._sshd.is_running

    def lose_power(self) -> None:
        """End every process of it at once."""
        if self._sshd is not None and self._sshd.is_running:
            self._sshd.kill()
        wait_for(lambda: not self.processes(), lambda: f"its processes: {self.processes()}")

    def remove(self) -> None:
        """Give its network back."""
        self.lose_power()
        _try("ip", "link", "del", self._ours)
        _try("ip", "netns", "del", self._space)


def machine_of(pid: int) -> str | None:
    """Return the machine that a process belongs to; empty for home, None if it is gone."""
    words = [word for word in _environment(pid) if word]
    for word in words:
        if word.startswith(_MARK):
            return word.removeprefix(_MARK).decode()
    return "" if words else None


def listening_ports(pid: int) -> list[int]:
    """Return the TCP ports that a process listens on."""
    sockets = set()
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(one))
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
    ]
    return [
        int(row[1].rpartition(":")[2], 16)
        for row in rows if row[3] == LISTENS and f"socket:[{row[9]}]" in sockets
    ]  # fmt: skip


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _command_line(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _below(parent: int) -> list[int]:
    """Return all processes below one."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])

    def below(pid: int) -> Iterator[int]:
        for child, its_parent in parents.items():
            if its_parent == pid:
                yield child
                yield from below(child)

    return list(below(parent))


def _is_sshd(pid: int) -> bool:
    return b"".join(_command_line(pid)[:1]).startswith(b"sshd")
