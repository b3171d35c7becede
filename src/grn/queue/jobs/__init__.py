"""Decisions about queued jobs: their states, their order, when they may start, how they end."""
