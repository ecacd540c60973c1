"""Rules: each returns the changes that follow from the state at a time, and leaves the state as it is."""
