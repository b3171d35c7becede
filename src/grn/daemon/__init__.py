"""Shared by both daemons: lock, socket, connections, databases."""
