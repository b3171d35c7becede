"""One process per user that keeps that user's commands durably and runs them when GPUs allow."""
