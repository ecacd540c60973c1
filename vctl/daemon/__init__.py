"""The scheduler that runs: in the foreground as ``vctl daemon``, or embedded in a command that waits."""
