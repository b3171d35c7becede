"""Words about nodes: why a place is not asked for a job, since when a node is out of sight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.model.units import show_time
from grn.queue.jobs.job import JobSpec
from grn.queue.sites.leases import choice
from grn.queue.sites.leases.choice import PilotSite

if TYPE_CHECKING:
    from grn.queue.sites.node import Node

GIVES_UP = ": `grn cancel --now` gives it up"


def of(node: Node, usual_s: float | None) -> str:
    """Return why a node is not asked for a job that may run there; empty if it could be."""
    if node.is_draining:
        return "takes nothing new"
    if not node.is_open:
        return f"cannot be used: {node.trouble or node.leases.trouble or 'it is being connected'}"
    if not choice.ends_within(usual_s, node.left_s):
        return _too_long(usual_s, "it ends", node.left_s)
    return ""


def of_site(spec: JobSpec, site: PilotSite, usual_s: float | None, is_used: bool) -> str:
    """Return why a site places no node for a job; empty if it has one, or will."""
    if spec.gpus > site.gpus:
        return too_small(spec, site)
    if not choice.ends_within(usual_s, site.time_s):
        return _too_long(usual_s, "its pilots end", site.time_s)
    return "" if is_used else site.text


def not_heard(name: str, silent_s: float | None, is_removed: bool) -> str:
    """Say since when a node is out of sight; None if it was not heard of at all."""
    since = "since the queue began" if silent_s is None else f"for {_roughly(silent_s)}"
    return f"{name} not heard of {since}{GIVES_UP if is_removed else ''}"


def not_used(name: str, trouble: str, is_removed: bool) -> str:
    """Say why a node that can be reached tells nothing of its attempts."""
    return f"{name} cannot be used: {trouble}{GIVES_UP if is_removed else ''}"


def _too_long(usual_s: float | None, ends: str, left_s: float | None) -> str:
    return f"such jobs take {show_time(usual_s)}, and {ends} after {show_time(left_s)}"


def _roughly(seconds: float) -> str:
    """Spell a duration so that the text changes seldom."""
    if seconds < 60:
        return f"{int(seconds) // 10 * 10} s" if seconds >= 10 else "a moment"
    minutes = int(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes < 48 * 60 else f"{minutes // 1440} days"


def too_small(spec: JobSpec, site: PilotSite) -> str:
    """Return why no pilot of a site could hold a job."""
    return f"its pilots have {site.gpus} of the {spec.gpus} GPUs it needs"
