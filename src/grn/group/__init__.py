"""Groups of jobs tied to one process: the runners of batches, sweeps and executors."""
