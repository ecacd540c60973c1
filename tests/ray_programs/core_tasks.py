"""Tasks, retries, generators, cancellation, and objects of many sizes."""

import os
import tempfile
import time

import ray

ray.init(log_to_driver=False)


@ray.remote
def double(value):
    return value * 2


@ray.remote(max_retries=2)
def dies_once(path):
    if not os.path.exists(path):
        open(path, "w").close()
        os._exit(1)
    return "survived"


@ray.remote(num_returns="streaming")
def count(limit):
    for number in range(limit):  # noqa: UP028 - Ray sends to the generator, and a range takes nothing
        yield number


@ray.remote
def sleep():
    time.sleep(1000)


@ray.remote
def nested(depth):
    return 0 if not depth else 1 + ray.get(nested.remote(depth - 1))


assert ray.get([double.remote(n) for n in range(100)]) == [2 * n for n in range(100)]
big = ray.put(b"x" * 10_000_000)
assert len(ray.get(double.remote(big))) == 20_000_000
assert ray.get(double.options(num_cpus=2).remote(double.remote(1))) == 4
assert ray.get(dies_once.remote(os.path.join(tempfile.mkdtemp(), "died"))) == "survived"
assert [ray.get(one) for one in count.remote(5)] == list(range(5))
assert ray.get(nested.remote(3)) == 3
sleeper = sleep.remote()
assert ray.wait([sleeper], timeout=0.5)[1] == [sleeper]
ray.cancel(sleeper, force=True)
try:
    ray.get(sleeper)
except (ray.exceptions.TaskCancelledError, ray.exceptions.WorkerCrashedError):
    print("cancelled")
