"""Replays of workloads through the negotiator's own engine, in virtual time."""
