"""The requests of clients: their handlers, and what these look up in the journal."""
