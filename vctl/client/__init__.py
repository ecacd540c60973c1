"""The Python API: a client for every verb, and what a program in a job can ask and hold."""
