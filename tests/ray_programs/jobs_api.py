"""The job API of this Ray's own dashboard: submit, logs, failure, stop, list."""

import time

import ray
from ray.job_submission import JobStatus, JobSubmissionClient

context = ray.init(log_to_driver=False)
client = JobSubmissionClient(f"http://{context.dashboard_url}")


def ended(job):
    until = time.monotonic() + 100
    while not client.get_job_status(job).is_terminal():
        assert time.monotonic() < until
        time.sleep(0.1)
    return client.get_job_status(job)


good = client.submit_job(entrypoint="echo said $A", runtime_env={"env_vars": {"A": "b"}}, metadata={"k": "v"})
assert ended(good) == JobStatus.SUCCEEDED
assert "said b" in client.get_job_logs(good)
assert client.get_job_info(good).metadata["k"] == "v"
bad = client.submit_job(entrypoint="exit 3")
assert ended(bad) == JobStatus.FAILED
long = client.submit_job(entrypoint="sleep 1000")
while client.get_job_status(long) == JobStatus.PENDING:
    time.sleep(0.1)
assert client.stop_job(long)
assert ended(long) == JobStatus.STOPPED
assert {good, bad, long} <= {job.submission_id for job in client.list_jobs()}
print("jobs")
