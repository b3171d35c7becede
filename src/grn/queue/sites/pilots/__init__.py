"""Adapters that place pilots by an engine: Slurm and Ray."""
