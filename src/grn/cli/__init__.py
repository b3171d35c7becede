"""What people look at: the command line and what it prints."""
