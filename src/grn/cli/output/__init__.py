"""Text, tables and pages made from values."""
