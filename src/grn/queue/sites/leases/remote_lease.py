"""The names of nodes and of their leases. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A node by its name, its site, and the command that makes a stream to its agent."""

    name: str
    site: str
    pipe: tuple[str, ...]

    @property
    def remedy(self) -> str:
        """Return what to do about another version of grn there."""
        is_host = self.pipe[0] == "ssh"
        return f"`grn site update {self.site}`" if is_host else "install this one on its nodes"


@dataclass(frozen=True, slots=True)
class RemoteLease:
    """A lease of a node: its name carries the node, and the life of it that granted the lease."""

    node: str
    epoch: str
    lease: str

    def __str__(self) -> str:
        return f"{self.node}/{self.epoch}/{self.lease}"


def remote(lease: str) -> RemoteLease | None:
    """Read the name of a lease; None for one of this machine."""
    parts = lease.split("/")
    return RemoteLease(*parts) if len(parts) == 3 else None


def node_of(lease: str | None) -> str:
    """Return the node that a lease is of; empty for this machine."""
    found = remote(lease or "")
    return "" if found is None else found.node
