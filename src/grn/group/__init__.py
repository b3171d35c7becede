"""Groups of jobs tied to one process: what runs the commands of batches, sweeps and executors."""
