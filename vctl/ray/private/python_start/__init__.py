"""The first folder of PYTHONPATH in a job with a private Ray; Python imports ``sitecustomize`` from it."""
