"""`grn web`: serve the page on loopback and print the link that opens it."""

from __future__ import annotations

import contextlib
import html
import os
import secrets
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Iterator
from pathlib import Path

import click
import uvicorn

from grn import paths
from grn.cli.help import command, flag
from grn.cli.web.app import Page
from grn.cli.web.queries import Sweeps
from grn.cli.web.security import RequestGuard
from grn.errors import DaemonError, MachineError, UsageError
from grn.proc import processes

ADDRESS = "127.0.0.1"
MIN_SECRET = 16
PREFIX, SUFFIX = "open-", ".html"
LINK_PREFIX = "link-"
REDIRECT = """<!doctype html>
<html><head><meta charset="utf-8"><meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={link}"><title>grn</title></head>
<body><a href="{link}">Open grn</a></body></html>
"""


@command()
@flag(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="Port to listen on; 0: any free port.",
)
@flag("--sweeps", metavar="DIR", default="sweeps", help="Folder with your sweeps.")
@flag("--metrics-token", metavar="FILE",
              help="File with a token that lets Prometheus read /metrics.")  # fmt: skip
@flag("--open", "opens", is_flag=True, help="Open the page in your browser.")
@flag("--link", "tells_link", is_flag=True,
              help="Print the link of the running page, and exit.")  # fmt: skip
def web(port: int, sweeps: str, metrics_token: str | None, opens: bool, tells_link: bool) -> int:
    """Serve a page with GPUs, jobs and job types, for this machine only.

    The printed link opens one session. `grn web --link`, in another terminal, prints a link that
    opens any number of sessions while the page runs. From another machine, use
    `ssh -L 8642:127.0.0.1:8642 HOST` and --port 8642. Ctrl-C stops the page.
    """
    if tells_link:
        click.echo(_standing_link())
        return 0
    secret = _secret(metrics_token) if metrics_token is not None else ""
    listener = _listen(port)
    port = listener.getsockname()[1]
    standing = secrets.token_urlsafe(24)
    guard = RequestGuard(port, secret, standing)
    page = Page(guard, Sweeps(os.path.abspath(sweeps)))
    config = uvicorn.Config(
        page.application(), log_level="error", access_log=False, lifespan="off", ws="none",
        timeout_graceful_shutdown=1, server_header=False, date_header=False,
    )  # fmt: skip
    server = uvicorn.Server(config)
    hint = "Make room there, or name another GRN_STATE_DIR."
    link_file = OwnerFile(LINK_PREFIX, "", _link(port, standing), hint)
    click.echo(_new_link(guard, port))
    text = "The link opens once; `grn web --link` prints one that stays. Ctrl-C ends the page."
    click.echo(text, err=True)
    if sys.stdin is not None and sys.stdin.isatty():
        _offer_links(guard, port)
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda *_: setattr(server, "should_exit", True))
    try:
        with _browser(guard, port) if opens else contextlib.nullcontext():
            server.run(sockets=[listener])
    finally:
        link_file.remove()
    return 0


@contextlib.contextmanager
def _browser(guard: RequestGuard, port: int) -> Iterator[None]:
    """Open a separate link in the browser, through a file that only this user can read."""
    file = RedirectFile(_new_link(guard, port))
    guard.when_used(file.link_used)

    def launch() -> None:  # some browsers return only when they are closed
        if not webbrowser.open(Path(file.path).as_uri()):
            click.echo("No browser could be started: open the link yourself.", err=True)

    try:
        threading.Thread(target=launch, daemon=True).start()
        yield
    finally:
        file.remove()


def _secret(path: str) -> str:
    """Read the token for the metrics; a short one could be guessed."""
    try:
        with open(path) as file:
            secret = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"{path} cannot be read: {said}.") from error
    if len(secret) < MIN_SECRET or not secret.isascii():
        raise UsageError(
            f"the secret in {path} is too short.",
            f"Make one: python3 -c 'import secrets; print(secrets.token_hex(16))' > {path}",
        )
    return secret


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((ADDRESS, port))
    except OSError as error:
        listener.close()
        raise MachineError(
            f"port {port} cannot be used: {error.strerror}.", "Choose another with --port, or 0."
        ) from error
    listener.listen(128)
    return listener


def _new_link(guard: RequestGuard, port: int) -> str:
    """Make a link. What follows the # is never sent to a server, so no log has it."""
    secret = secrets.token_urlsafe(24)
    guard.give_link(secret)
    return _link(port, secret)


def _link(port: int, secret: str) -> str:
    return f"http://{ADDRESS}:{port}/#link={secret}"


def _offer_links(guard: RequestGuard, port: int) -> None:
    """Print another link at each press of Enter."""

    def listen() -> None:
        while sys.stdin.readline():
            click.echo(_new_link(guard, port))

    threading.Thread(target=listen, daemon=True).start()


class OwnerFile:
    """A file of a running page that only its user can read; it is removed when the page ends.

    The redirect of `--open` is one: every user of the machine can read command lines.
    """

    def __init__(self, prefix: str, suffix: str, text: str, hint: str) -> None:
        folder = _folder()
        self.path = os.path.join(folder, f"{prefix}{os.getpid()}{suffix}")
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            os.chmod(folder, 0o700)
            _remove_leftovers(folder, prefix, suffix)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(self.path, flags, 0o600), "w") as file:
                file.write(text)
        except OSError as error:
            raise MachineError(f"{self.path} cannot be written: {error.strerror}.", hint) from error

    def remove(self) -> None:
        """Remove the file; it may be gone already."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)


class RedirectFile(OwnerFile):
    """A page on disk that redirects to a link; it is removed when the link has been used."""

    def __init__(self, link: str) -> None:
        self._link = link
        text = REDIRECT.format(link=html.escape(link))
        hint = "Leave out --open and open the printed link, or name another GRN_STATE_DIR."
        super().__init__(PREFIX, SUFFIX, text, hint)

    def link_used(self, secret: str) -> None:
        """Remove the file if this is the secret of its link."""
        if self._link.endswith(f"#link={secret}"):
            self.remove()


def _folder() -> str:
    return os.path.join(paths.state_dir(), "web")


def _standing_link() -> str:
    """Return the standing link of the page that was started last and still runs."""
    try:
        names = os.listdir(_folder())
    except OSError:
        names = []
    found = []
    for name in names:
        pid = _pid_of(name, LINK_PREFIX, "")
        path = os.path.join(_folder(), name)
        if pid is not None and processes.look(pid) is not None:
            with contextlib.suppress(OSError), open(path) as file:  # it may end at this moment
                found.append((os.stat(path).st_mtime, file.read().strip()))
    if not found:
        raise DaemonError(
            "no `grn web` of yours runs.", "Start one: `grn web`, or `nohup grn web &`."
        )
    return max(found)[1]


def _pid_of(name: str, prefix: str, suffix: str) -> int | None:
    """Return the process that wrote a file, by the file's name."""
    pid = name.removeprefix(prefix).removesuffix(suffix)
    return int(pid) if name == f"{prefix}{pid}{suffix}" and pid.isdecimal() else None


def _remove_leftovers(folder: str, prefix: str, suffix: str) -> None:
    """Remove files of killed servers, also of an earlier process with this pid."""
    for name in os.listdir(folder):
        pid = _pid_of(name, prefix, suffix)
        if pid is not None and (pid == os.getpid() or processes.look(pid) is None):
            os.unlink(os.path.join(folder, name))
