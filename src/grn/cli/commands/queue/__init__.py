"""Commands for the jobs of the queue."""
