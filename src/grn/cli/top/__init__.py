"""`grn top`."""
