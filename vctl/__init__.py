"""Virtual clusters on one machine or a Ray cluster: named, nested, elastic parts with gang-scheduled jobs."""

__version__ = "0.1.0"
