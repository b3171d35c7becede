"""How much memory the next run of a type needs, and how sure that is."""
