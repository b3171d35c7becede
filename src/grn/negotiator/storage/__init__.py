"""What survives the negotiator: the state file and the audit log."""
