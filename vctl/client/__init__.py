"""The command line against a server: the functions of ``vctl.ops`` and ``vctl.daemon.waiting``, over HTTP."""
