"""HyperQueue at the same work, through its Python package: server and worker in this process, which keep nothing.

``python -m tests.benchmarks.hyperqueue SLOTS JOBS array|single`` prints the seconds from the first submit
to the last end, which it sees a second late at most.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import time

IS_INSTALLED = importlib.util.find_spec("hyperqueue") is not None


def seconds(slots: int, jobs: int, form: str) -> float:
    """Measure in another process: the package logs to the terminal and ends with its process only."""
    words = [sys.executable, "-m", __spec__.name, str(slots), str(jobs), form]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=600)
    return float(done.stdout.split()[-1])


def main() -> None:
    """Run the jobs as one batch (``array``) or as jobs of one task each (``single``)."""
    from hyperqueue import Job
    from hyperqueue.cluster import LocalCluster, WorkerConfig

    slots, jobs, form = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    with tempfile.TemporaryDirectory() as folder, LocalCluster(folder, WorkerConfig(cores=slots)) as cluster:
        client = cluster.client()
        began = time.perf_counter()
        batches = [jobs] if form == "array" else [1] * jobs
        submitted = []
        for size in batches:
            job = Job(default_workdir=folder, max_fails=None)
            for _ in range(size):
                job.program(["true"], stdout=None, stderr=None)
            submitted.append(client.submit(job))
        if not client.wait_for_jobs(submitted):
            raise RuntimeError("a task of HyperQueue failed")
        print(time.perf_counter() - began)


if __name__ == "__main__":
    main()
