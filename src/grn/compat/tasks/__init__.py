"""GPUTaskScheduler: a task class and a nested dictionary become runs on fixed GPUs."""
