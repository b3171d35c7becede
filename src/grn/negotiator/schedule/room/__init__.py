"""What is free: memory and load of each GPU, of the host, and who has which part of it."""
