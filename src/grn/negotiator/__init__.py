"""One process per machine that decides which job gets which GPU, and when."""
