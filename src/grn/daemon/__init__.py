"""What both daemons stand on: lock, socket, connections, databases."""
