"""What makes grn a part of other tools: Hydra, joblib, pytest. One file for each library."""
