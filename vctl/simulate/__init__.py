"""Simulates a workload with the scheduler's own rounds and a virtual clock, without processes and store."""
