"""ray.util: a pool of processes, a pool of actors, a queue, metrics; variables of a runtime_env."""

import os

import ray
from ray.util import ActorPool
from ray.util.metrics import Counter
from ray.util.multiprocessing import Pool
from ray.util.queue import Queue

ray.init(log_to_driver=False)


def square(number):
    return number * number


@ray.remote(num_cpus=0.5)
class Worker:
    def work(self, number):
        return number + 1


@ray.remote(num_cpus=0.5)
def fill(queue, count):
    for number in range(count):
        queue.put(number)


with Pool(2) as pool:
    assert pool.map(square, range(20)) == [square(n) for n in range(20)]
workers = ActorPool([Worker.remote() for _ in range(2)])
assert list(workers.map(lambda actor, value: actor.work.remote(value), range(6))) == list(range(1, 7))
del workers
queue = Queue()
ray.get(fill.remote(queue, 5))
assert [queue.get(timeout=30) for _ in range(5)] == list(range(5))
Counter("vctl_set", description="of this set").inc()
env = {"env_vars": {"OF_A_TASK": "yes"}}
assert ray.get(ray.remote(runtime_env=env)(lambda: os.environ["OF_A_TASK"]).remote()) == "yes"
print("utilities")
