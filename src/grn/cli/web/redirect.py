"""A file that leads a browser to the page, so that the link is on no command line.

Every user of the machine can read command lines; this file can be read by its owner only.
"""

from __future__ import annotations

import contextlib
import html
import os

from grn import paths
from grn.errors import MachineError

PREFIX, SUFFIX = "open-", ".html"
TEXT = """<!doctype html>
<html><head><meta charset="utf-8"><meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={link}"><title>grn</title></head>
<body><a href="{link}">Open grn</a></body></html>
"""


class RedirectFile:
    """A page on disk that redirects to a link; it is removed when the link has been used."""

    def __init__(self, link: str) -> None:
        self._link = link
        folder = os.path.join(paths.state_dir(), "web")
        self.path = os.path.join(folder, f"{PREFIX}{os.getpid()}{SUFFIX}")
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            os.chmod(folder, 0o700)
            _remove_leftovers(folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(self.path, flags, 0o600), "w") as file:
                file.write(TEXT.format(link=html.escape(link)))
        except OSError as error:
            raise MachineError(
                f"{self.path} cannot be written: {error.strerror}.",
                "Leave out --open and open the printed link, or name another GRN_STATE_DIR.",
            ) from error

    def link_used(self, secret: str) -> None:
        """Remove the file if this is the secret of its link."""
        if self._link.endswith(f"#link={secret}"):
            self.remove()

    def remove(self) -> None:
        """Remove the file; it may be gone already."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)


def _remove_leftovers(folder: str) -> None:
    """Remove files of servers that were killed, and one of an earlier process with our pid."""
    for name in os.listdir(folder):
        pid = name.removeprefix(PREFIX).removesuffix(SUFFIX)
        is_ours = name == f"{PREFIX}{pid}{SUFFIX}" and pid.isdecimal()
        if is_ours and (pid == str(os.getpid()) or not os.path.exists(f"/proc/{pid}")):
            os.unlink(os.path.join(folder, name))
