"""Commands on GPUs that are given by hand, or that a job has already: run by this process."""
