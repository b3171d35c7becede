"""The page: a small server on loopback, and what the browser gets from it."""
