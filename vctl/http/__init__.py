"""The HTTP server: ant-ray's management API, ``/api/v1``, metrics. Fix and exit code travel with every error."""
