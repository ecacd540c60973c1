"""The Python API: a client for every verb, the runtime context, and virtual clusters as ``with`` blocks."""
