"""Requests and replies of both daemons, and the lease conversation, without I/O."""
