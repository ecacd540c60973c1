"""What Ray's dashboard answers: the state API, and the commands that need it."""

import os
import subprocess
import sys

import ray
from ray.util.state import list_actors, list_nodes, summarize_tasks

ray.init(log_to_driver=False)


@ray.remote
class Seen:
    def call(self):
        return 1


seen = Seen.options(name="seen-by-the-state").remote()
ray.get(seen.call.remote())
assert [one.state for one in list_actors(filters=[("name", "=", "seen-by-the-state")])] == ["ALIVE"]
alive = {node.node_id for node in list_nodes() if node.state == "ALIVE"}
assert alive == {node["NodeID"] for node in ray.nodes() if node["Alive"]}
assert summarize_tasks()
for words in (["status"], ["list", "nodes"], ["summary", "actors"], ["memory"], ["health-check"]):
    command = [os.path.join(os.path.dirname(sys.executable), "ray"), *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, (words, done.stdout)
    print(*words)
