"""Moved to grn.ground."""

from grn.ground import *  # noqa: F403
