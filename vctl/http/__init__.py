"""The HTTP server: ant-ray's management API, ``/api/v1``, Ray's job API, metrics. Every error has a fix."""
