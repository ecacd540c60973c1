"""Serve's commands: a configuration is built, deployed, shown, changed and shut down."""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile

import ray
import yaml

APPS = """
from ray import serve

@serve.deployment(ray_actor_options={"num_cpus": 0.2})
class Hello:
    def reconfigure(self, config):
        self.word = config["word"]

    def __call__(self, request):
        return self.word

app = Hello.options(user_config={"word": "one"}).bind()
"""
folder, port = tempfile.mkdtemp(), int(sys.argv[1])
os.environ.setdefault("RAY_DASHBOARD_ADDRESS", f"http://{ray.init(log_to_driver=False).dashboard_url}")
with open(f"{folder}/apps.py", "w") as file:
    file.write(APPS)
with zipfile.ZipFile(f"{folder}/apps.zip", "w") as archive:
    archive.writestr("apps/apps.py", APPS)


def serve(*words):
    command = [os.path.join(os.path.dirname(sys.executable), "serve"), *words]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, (words, done.stdout)
    return done.stdout


def deploy(word):
    with open(f"{folder}/built.yaml") as file:
        config = yaml.safe_load(file)
    config["http_options"]["port"] = port
    (app,) = config["applications"]
    app["runtime_env"] = {"working_dir": f"file://{folder}/apps.zip"}
    app["deployments"][0]["user_config"] = {"word": word}
    with open(f"{folder}/config.yaml", "w") as file:
        yaml.safe_dump(config, file)
    serve("deploy", "config.yaml")
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
                if answer.read().decode() == word:
                    return
        except urllib.error.URLError:  # it starts
            pass
        time.sleep(0.2)


serve("build", "apps:app", "-o", "built.yaml")
deploy("one")
shown = yaml.safe_load(serve("status"))
assert [app["status"] for app in shown["applications"].values()] == ["RUNNING"], json.dumps(shown)
deploy("two")
assert yaml.safe_load(serve("config"))["deployments"][0]["user_config"] == {"word": "two"}
serve("shutdown", "-y")
print("serve's commands")
