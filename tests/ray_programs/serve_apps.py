"""Serve: HTTP, a composition of deployments, batches, an update, the status."""

import json
import sys
import time
import urllib.error
import urllib.request

import ray
from ray import serve

ray.init(log_to_driver=False)
port = int(sys.argv[1])


def get(path):
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:  # a proxy that has just started knows no routes yet
            if error.code not in (404, 503):
                raise
            time.sleep(0.1)


@serve.deployment(ray_actor_options={"num_cpus": 0.2})
class Batches:
    @serve.batch(max_batch_size=4, batch_wait_timeout_s=0.1)
    async def __call__(self, numbers):
        return [number * 2 for number in numbers]


@serve.deployment(ray_actor_options={"num_cpus": 0.2})
class Front:
    def __init__(self, batches):
        self.batches = batches

    async def __call__(self, request):
        return {"got": await self.batches.remote(int(request.query_params["n"]))}


@serve.deployment(ray_actor_options={"num_cpus": 0.2}, user_config={"word": "one"})
class Word:
    def reconfigure(self, config):
        self.word = config["word"]

    def __call__(self, request):
        return self.word


serve.start(http_options={"port": port})
serve.run(Front.bind(Batches.bind()), name="front", route_prefix="/front")
assert json.loads(get("/front?n=21")) == {"got": 42}
assert get("/front?n=1") == '{"got":2}'
handle = serve.run(Word.bind(), name="word", route_prefix="/word")
assert get("/word") == "one"
serve.run(Word.options(user_config={"word": "two"}).bind(), name="word", route_prefix="/word")
assert get("/word") == "two"
assert {app.status for app in serve.status().applications.values()} == {"RUNNING"}
serve.delete("word")
serve.shutdown()
print("serve")
