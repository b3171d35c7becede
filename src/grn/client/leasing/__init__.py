"""Leases for the code of this process: `@grn.job`, `grn.lease`, and what they set up around it."""
