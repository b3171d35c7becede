"""Processes: the only place that reads /proc, spawns, signals and ends process trees."""
