"""Two ways in from outside: the command line against a server (``remote``), and the Python API (``api``)."""
