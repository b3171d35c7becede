"""The hardware: what GPUs there are and what they hold at one moment."""
