"""What is refused, in words, and what would help."""
