"""Batches: the lines of a file as jobs, with a journal of how each ended."""
