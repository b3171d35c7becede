"""Where grn keeps its socket and its files on this machine.

Only names of places; making folders and checking them is left to those who use them.
"""

from __future__ import annotations

import os

SHARED_RUNTIME_DIR = "/tmp/grn"


def runtime_dir() -> str:
    """Return the folder where all users of this machine meet: lock and sockets."""
    return os.environ.get("GRN_RUNTIME_DIR") or SHARED_RUNTIME_DIR


def own_socket() -> str:
    """Return the socket that a negotiator of this user listens on."""
    explicit = os.environ.get("GRN_SOCKET")
    return explicit or os.path.join(runtime_dir(), f"{os.getuid()}.sock")


def sockets_to_try() -> list[str]:
    """Return where a negotiator may answer: one's own, root's, the folder owner's, then others'."""
    if os.environ.get("GRN_SOCKET"):
        return [own_socket()]
    own = own_socket()
    try:
        keepers = ("0.sock", f"{os.stat(runtime_dir()).st_uid}.sock")
        names = sorted(os.listdir(runtime_dir()), key=lambda name: (name not in keepers, name))
    except OSError:
        names = []
    others = [os.path.join(runtime_dir(), name) for name in names if name.endswith(".sock")]
    return [own] + [path for path in others if path != own]


def state_dir() -> str:
    """Return the folder for what must survive a restart."""
    explicit = os.environ.get("GRN_STATE_DIR")
    if explicit:
        return explicit
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(base, "grn")


def settings_file() -> str:
    """Return the path of the settings file, whether it exists or not."""
    explicit = os.environ.get("GRN_CONFIG")
    if explicit:
        return explicit
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(base, "grn", "config.toml")


def queue_socket() -> str:
    """Return the socket of this user's queue, in a folder that only this user can enter."""
    return os.path.join(runtime_dir(), f"user-{os.getuid()}", "queue.sock")
