"""Actors: state, names, namespaces, restarts, concurrency, an end by hand."""

import asyncio
import os

import ray

ray.init(log_to_driver=False, namespace="mine")


@ray.remote(max_restarts=1, max_task_retries=1)
class Counter:
    def __init__(self):
        self.value = 0

    def add(self):
        self.value += 1
        return self.value

    def pid(self):
        return os.getpid()

    def die(self):
        os._exit(1)


@ray.remote
class Meeting:
    def __init__(self):
        self.all_here = asyncio.Event()
        self.here = 0

    async def come(self, expected):
        self.here += 1
        if self.here == expected:
            self.all_here.set()
        await self.all_here.wait()
        return self.here


counter = Counter.options(name="counter").remote()
assert ray.get([counter.add.remote() for _ in range(10)]) == list(range(1, 11))
assert ray.get(ray.get_actor("counter").add.remote()) == 11
first = ray.get(counter.pid.remote())
os.kill(first, 9)
assert ray.get(counter.pid.remote()) != first
meeting = Meeting.remote()
assert ray.get([meeting.come.remote(20) for _ in range(20)]) == [20] * 20
detached = Counter.options(name="stays", lifetime="detached", num_cpus=0).remote()
ray.get(detached.add.remote())
ray.shutdown()
ray.init(log_to_driver=False, namespace="mine")
assert ray.get(ray.get_actor("stays").add.remote()) == 2
ray.kill(ray.get_actor("stays"))
print("actors", ray.cluster_resources()["CPU"])
