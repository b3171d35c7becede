"""Paths of grn's sockets and files on this machine, and their owners.

Only reads; callers create folders or refuse them.
"""

from __future__ import annotations

import os
import stat

SHARED_RUNTIME_DIR = "/tmp/grn"


def runtime_dir() -> str:
    """Return the shared folder of all users of this machine: lock and sockets."""
    return os.environ.get("GRN_RUNTIME_DIR") or SHARED_RUNTIME_DIR


def distrust(folder: str) -> str:
    """Return why a negotiator of this user must not use a shared folder, or an empty text.

    The owner of a folder, or of a link to it, can replace lock and socket.
    """
    link = _link_of_another(os.path.abspath(folder))
    if link:
        return f"{link} is a link that user {user_name(os.lstat(link).st_uid)} made."
    try:
        found = os.stat(folder)
    except OSError:
        return ""
    is_open = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
    if is_open and found.st_uid != os.getuid():
        return f"anybody can remove anything in {folder}: it is not sticky."
    other = owner_apart(folder)
    if other and os.getuid() == 0:
        return f"{folder} belongs to user {other}, who could remove root's lock and socket."
    return ""


def owner_apart(folder: str) -> str:
    """Return the name of a folder's owner if it is neither root nor this user, else empty."""
    try:
        owner = os.stat(folder).st_uid
    except OSError:
        return ""
    return "" if owner in (0, os.getuid()) else user_name(owner)


def _link_of_another(path: str) -> str:
    """Return the first link on the way to a path that neither root nor this user made."""
    way = ""
    for name in path.split("/")[1:]:
        way = f"{way}/{name}"
        try:
            found = os.lstat(way)
        except OSError:
            return ""
        if stat.S_ISLNK(found.st_mode) and found.st_uid not in (0, os.getuid()):
            return way
    return ""


_user_names: dict[int, str] = {}  # a directory service may answer slowly


def user_name(user: int) -> str:
    """Return the name of a user; the number where there is no name."""
    if user not in _user_names:
        import pwd

        try:
            _user_names[user] = pwd.getpwuid(user).pw_name
        except KeyError:
            _user_names[user] = str(user)
    return _user_names[user]


def own_socket() -> str:
    """Return the socket that a negotiator of this user listens on."""
    explicit = os.environ.get("GRN_SOCKET")
    return explicit or os.path.join(runtime_dir(), f"{os.getuid()}.sock")


def sockets_to_try() -> list[str]:
    """Return the sockets to try: one's own, root's, the folder owner's, then others'.

    The others come by number, so that every client asks in the same order.
    """
    own = own_socket()
    if os.environ.get("GRN_SOCKET"):
        return [own]
    folder = runtime_dir()
    try:
        keepers = ("0", str(os.stat(folder).st_uid))
        names = [name[:-5] for name in os.listdir(folder) if name.endswith(".sock")]
    except OSError:
        names = []
    names.sort(key=lambda name: (_position(name, keepers), len(name), name))
    paths = [os.path.join(folder, f"{name}.sock") for name in names]
    return [own] + [path for path in paths if path != own]


def _position(name: str, keepers: tuple[str, ...]) -> int:
    """Sort root and the folder's owner first, and names that are no user's number last."""
    if name in keepers:
        return keepers.index(name)
    return len(keepers) if name.isdecimal() else len(keepers) + 1


def state_dir() -> str:
    """Return the folder for state that must survive a restart."""
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
    """Return the socket of this user's queue, in a folder that only this user can enter.

    The folder is beside the runtime folder, which containers mount, never in it.
    """
    folder = runtime_dir().rstrip("/") or "/"
    own = f"{folder}-{os.getuid()}"
    parent = os.path.dirname(own) or "."
    if not os.access(parent, os.W_OK) and os.path.isdir(parent) and not os.path.isdir(own):
        own = f"{SHARED_RUNTIME_DIR}-{os.getuid()}"  # beside /run/grn only root can make one
    return os.path.join(own, "queue.sock")


def commands_socket() -> str:
    """Return the socket at which the queue has commands of `grn` forked."""
    return os.path.join(os.path.dirname(queue_socket()), "commands.sock")


def former_queue_socket() -> str:
    """Return where queues of older versions listen: in the runtime folder."""
    return os.path.join(runtime_dir(), f"user-{os.getuid()}", "queue.sock")
