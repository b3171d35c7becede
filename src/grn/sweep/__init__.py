"""Sweeps: the points to run, the runs on disk, and the table of their results."""
