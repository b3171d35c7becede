"""Whose turn it is: order, fair share, reservations, and the queue of waiting requests."""
