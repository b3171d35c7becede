"""The values of grn, frozen; no I/O."""

MAX_GPUS = 1_000_000  # of one job
MAX_PRIORITY = 1000  # and as far below zero
MAX_RETRIES = 1000
MAX_CHOICE = 256  # characters of a choice of GPUs
MAX_CPUS = 100_000  # that a job may ask for
