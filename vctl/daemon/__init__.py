"""The running scheduler, in the foreground (``vctl daemon``) or background, and code of waiting commands."""
