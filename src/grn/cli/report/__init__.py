"""Pages, pictures and tables of a period, a sweep and a replayed workload."""
