"""Stand-ins for what a machine with NVIDIA GPUs has: the driver's library, and torch."""
