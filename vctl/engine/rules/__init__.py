"""Rules: what follows from the state at a time, as changes. They change nothing."""
