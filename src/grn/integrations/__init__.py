"""Integrations with Hydra, joblib and pytest, one file for each library."""
