"""Access to the page: one-time links, a standing link, sessions, hosts, headers of every answer.

Pure: it holds secrets that the caller made, and compares.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
MAX_SESSIONS = 32
MAX_LINKS = 8


class RequestGuard:
    """The issued links and the sessions opened with them."""

    def __init__(self, port: int, metrics_secret: str = "", standing_link: str = "") -> None:
        self._hosts = {f"{name}:{port}" for name in LOOPBACK}
        self._metrics_secret = metrics_secret  # opens /metrics only
        self._standing_link = standing_link  # opens any number of sessions
        self._links: list[str] = []
        self._sessions: list[str] = []
        self._when_used: Callable[[str], None] = lambda link: None

    def when_used(self, tell: Callable[[str], None]) -> None:
        """Set the function that gets the secret of each used link."""
        self._when_used = tell

    def give_link(self, secret: str) -> None:
        """Remember a link that opens one session."""
        self._links = [*self._links, secret][-MAX_LINKS:]

    def open_session(self, link: str, secret: str) -> bool:
        """Consume a link, or use the standing one; False when it is unknown or used."""
        found = [known for known in self._links if _are_same(known, link)]
        is_standing = _are_same(self._standing_link, link) and bool(self._standing_link)
        if not found and not is_standing:
            return False
        self._sessions = [*self._sessions, secret][-MAX_SESSIONS:]
        if found:
            self._links.remove(found[0])
            self._when_used(found[0])
        return True

    def knows(self, authorization: str) -> bool:
        """True when a request names an open session."""
        kind, _, secret = authorization.partition(" ")
        same = [_are_same(known, secret) for known in self._sessions]
        return kind.lower() == "bearer" and any(same)

    def knows_reader(self, authorization: str) -> bool:
        """True for a session and for the metrics token."""
        is_reader = _are_same(f"Bearer {self._metrics_secret}", authorization)
        return self.knows(authorization) or (bool(self._metrics_secret) and is_reader)

    def refusal(self, method: str, headers: Mapping[str, str]) -> str:
        """Return why a request is refused regardless of its session, empty if it is not.

        A foreign page may make a browser send requests here, under a name that resolves to this
        machine; requests of grn's own page differ.
        """
        host = headers.get("host", "").lower()
        if host not in self._hosts:
            return "this name does not lead here"
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in {f"http://{name}" for name in self._hosts}:
            return "requests of other pages are not answered"
        site = headers.get("sec-fetch-site", "same-origin")
        allowed = ("same-origin",) if method not in ("GET", "HEAD") else ("same-origin", "none")
        is_opened = headers.get("sec-fetch-mode") == "navigate" and method == "GET"
        if site not in allowed and not is_opened:
            return "requests of other pages are not answered"
        return ""


def _are_same(known: str, said: str) -> bool:
    """Compare in constant time, and as bytes: text that is not ASCII cannot be compared so."""
    return hmac.compare_digest(known.encode(), said.encode("utf-8", "surrogatepass"))
