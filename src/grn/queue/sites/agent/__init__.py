"""The agent on a node: runs attempts for a queue at home, and sends their output."""
