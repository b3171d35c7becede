"""One process per machine that decides who gets which GPU, and when."""
