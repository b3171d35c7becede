"""Attempts that run on this machine: the shims around commands, and the files they leave."""
