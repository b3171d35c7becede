"""Pure learning: what runs teach about memory, time and interference."""
