"""Which node runs a job: choosing one, asking it for a lease, and why a job waits there."""
