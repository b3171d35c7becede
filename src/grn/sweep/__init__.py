"""Many runs: what is to run, on which slots or leases, and what came of it."""
