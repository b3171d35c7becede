"""Commands that run other commands: one, a file of them, or a sweep."""
