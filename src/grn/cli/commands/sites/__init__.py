"""Commands for the sites of the queue."""
