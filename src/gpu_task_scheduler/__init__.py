"""The import name of an older tool; what it did is in `grn.compat`."""
