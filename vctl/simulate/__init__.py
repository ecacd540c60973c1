"""A workload under a virtual clock: the scheduler's own rounds, without processes and without a store."""
