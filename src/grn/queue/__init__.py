"""One process per user that stores that user's commands durably and runs them on free GPUs."""
