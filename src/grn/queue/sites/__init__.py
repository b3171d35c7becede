"""Nodes on other machines: the agent that runs attempts there, and the queue's side of it."""
