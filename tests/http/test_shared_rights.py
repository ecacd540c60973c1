"""Who may do what over HTTP in a shared service: tokens, and the routes that no verb declares."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.operations.test_declared import Routes
from tests.operations.test_rights import (
    ALL,
    ANA,
    BEN,
    CALLERS,
    CANARY,
    CHANGERS,
    LEA,
    MEMBER,
    PAT,
    READERS,
    ROOT,
    SAM,
    SUBMITTERS,
    template,
)
from tests.specification import spec
from vctl.config import load
from vctl.core.identity import Identity
from vctl.errors import NotPermitted
from vctl.http import app as http
from vctl.http.context import ASKING, Server
from vctl.http.events import events_from
from vctl.ops import tokens
from vctl.ops.rights import RIGHTS
from vctl.ops.users import Users
from vctl.store.store import Store

pytestmark = spec("19.rights", "14.safety")

__all__ = ["template"]  # a fixture
FILE_TOKEN = "token-of-the-account-0123456789"
PEOPLE = {one.uid: one for one in (ANA, BEN, SAM, PAT, LEA, ROOT, MEMBER)}


class People(Users):
    """The users of a service on a machine that has only these."""

    def of_uid(self, uid: int) -> Identity:
        if uid not in PEOPLE:
            raise NotPermitted(f"uid {uid} has no account on this machine", fix="make one")
        return PEOPLE[uid]


class Shared:
    """A server of a shared service in this process, and its users with their tokens."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.server = Server(home, load(flags={"home": str(home)}), FILE_TOKEN, users=People())
        self.app = http.create_app(self.server)
        self.routes = Routes(self.app)
        self._tokens: dict[int, str] = {}

    def token(self, who: Identity, for_s: float = 3600.0) -> str:
        with Store.open(self.home) as store:
            store.identity = who
            return tokens.login(store, for_s)["token"]

    def ask(
        self, who: Identity | None, method: str, path: str, job: str = "", **sent: Any
    ) -> tuple[int, str]:
        headers: dict[str, str] = {}
        if who is not None:
            if who.uid not in self._tokens:
                self._tokens[who.uid] = self.token(who)
            headers["Authorization"] = f"Bearer {self._tokens[who.uid]}"
        if job:
            with Store.open(self.home) as store:
                number = store.value("SELECT job_id FROM jobs WHERE submission_id = ?", job)
            headers |= {"X-Vctl-Job-Id": str(number), "X-Vctl-Submission-Id": job}
        answer = self.routes.request(method, path, headers=headers, **sent)
        return answer.status_code, answer.text


@pytest.fixture
def shared(template: Path, tmp_path: Path) -> Shared:
    home = tmp_path / "state"
    shutil.copytree(template, home)
    (home / "logs").mkdir(exist_ok=True)
    for name in ("hers", "running", "failed", "task-1"):
        (home / "logs" / f"{name}.log").write_text(f"{CANARY}\n")
    return Shared(home)


def test_a_token_says_who_asks(shared: Shared) -> None:
    assert shared.ask(ANA, "POST", "/api/v1/jobs/hers/hold")[0] == 200
    status, said = shared.ask(BEN, "POST", "/api/v1/jobs/hers/hold")
    error = json.loads(said)["error"]
    assert (status, error["exit_code"]) == (403, 8)
    assert error["message"].startswith("job hers belongs to ana: ana, admins of lab")
    # what the request says about itself is not read
    headers = {"X-Forwarded-User": "ana", "X-Remote-User": "ana", "Cookie": "user=ana"}
    headers["Authorization"] = f"Bearer {shared.token(BEN)}"
    assert shared.routes.post("/api/v1/jobs/hers/hold", headers=headers).status_code == 403


def test_tokens_end_and_are_revoked(shared: Shared) -> None:
    def asked(token: str, scheme: str = "Bearer") -> tuple[int, dict[str, Any]]:
        answer = shared.routes.get("/api/v1/jobs", headers={"Authorization": f"{scheme} {token}"})
        return answer.status_code, answer.json().get("error", {})

    good, short = shared.token(ANA), shared.token(ANA, for_s=1e-9)
    assert asked(good)[0] == 200
    assert asked(FILE_TOKEN)[0] == 200  # the account's own
    number = good.partition(".")[0]
    wrong = {
        good[:-1]: "wrong", f"{number}.": "wrong", number: "wrong", good.replace("vctl-", ""): "wrong", "": "needed",
        f"vctl-999.{good.partition('.')[2]}": "wrong", f"vctl--1.{good}": "wrong",
        short: "ended at",
    }  # fmt: skip
    for token, problem in wrong.items():
        status, error = asked(token.encode("latin-1").decode("latin-1"))
        assert status == 401, token
        assert problem in error["message"] or (token == "" and "wrong" in error["message"]), (token, error)
        assert "vctl login" in error["hint"]
    assert asked(good, "Basic")[0] == 401
    with Store.open(shared.home) as store:
        for odd in ("vctl-é.ü", "vctl-²." + good, "vctl-" + "9" * 40 + ".a", ".", "vctl-."):
            assert tokens.presented(store, odd) is None
    assert shared.routes.get("/api/v1/jobs").status_code == 401
    with Store.open(shared.home) as store:
        kept = json.dumps([dict(row) for row in store.rows("SELECT * FROM tokens")])
        assert good.partition(".")[2] not in kept  # only a digest
        store.identity = BEN
        with pytest.raises(Exception, match="you have no token"):
            tokens.revoke(store, [number.removeprefix("vctl-")])
        assert tokens.list_tokens(store) == []
        with pytest.raises(NotPermitted):
            tokens.list_tokens(store, all_users=True)
        store.identity = ROOT
        assert tokens.list_tokens(store, all_users=True)
        tokens.revoke(store, [number.removeprefix("vctl-")])
    assert asked(good)[0] == 401


def test_a_token_makes_no_other_token_and_ends_itself(shared: Shared) -> None:
    """A stolen one has an end that the thief cannot move."""
    assert shared.ask(ANA, "POST", "/api/v1/tokens")[0] == 403
    other = shared.token(ANA)
    assert shared.ask(ANA, "DELETE", "/api/v1/tokens")[0] == 200
    assert shared.ask(ANA, "GET", "/api/v1/jobs")[0] == 401
    headers = {"Authorization": f"Bearer {other}"}
    assert shared.routes.get("/api/v1/jobs", headers=headers).status_code == 200
    with Store.open(shared.home) as store:
        store.identity = ANA
        assert [one["user"] for one in tokens.logout(store)] == [
            "ana"
        ]  # the kernel says who asks: all of hers
    assert shared.routes.get("/api/v1/jobs", headers=headers).status_code == 401


def test_the_token_of_an_account_that_is_gone(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    token = shared.token(SAM)
    monkeypatch.delitem(PEOPLE, SAM.uid)
    headers = {"Authorization": f"Bearer {token}"}
    assert shared.routes.get("/api/v1/jobs", headers=headers).status_code == 403


HAND: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "POST /virtual_clusters": (
        "/virtual_clusters", {"json": {"virtualClusterId": "lab", "divisible": True, "replicaSets": {}}},
        {"admin", "admin above", "root", "member"},
    ),
    "POST /virtual_clusters/remove_nodes": (
        "/virtual_clusters/remove_nodes", {"json": {"virtualClusterId": "lab", "nodesToRemove": []}},
        {"admin", "admin above", "root", "member"},
    ),
    "DELETE /virtual_clusters/{virtual_cluster_id}": (
        "/virtual_clusters/lab", {}, {"admin above", "root", "member"},
    ),
    "GET /api/v1/jobs/{job}/wait": ("/api/v1/jobs/failed/wait?timeout_s=0", {}, ALL),
    "GET /api/v1/tasks/{task}/wait": ("/api/v1/tasks/task-1/wait?timeout_s=0", {}, ALL),
    "GET /api/v1/clusters/{cluster}/wait": ("/api/v1/clusters/lab/wait?timeout_s=0", {}, ALL),
    "GET /api/jobs/": ("/api/jobs/", {}, ALL),
    "GET /api/jobs/{job}": ("/api/jobs/failed", {}, ALL),
    "GET /api/v1/jobs/{job}/logs": ("/api/v1/jobs/hers/logs", {}, READERS),
    "GET /api/v1/tasks/{task}/logs": ("/api/v1/tasks/task-1/logs", {}, READERS),
    "GET /api/jobs/{job}/logs": ("/api/jobs/hers/logs", {}, READERS),
    "GET /api/jobs/{job}/logs/tail": ("/api/jobs/hers/logs/tail", {}, ALL),  # 400: it is over a websocket
    "POST /api/jobs/": (
        "/api/jobs/", {"json": {"entrypoint": "true", "metadata": {"virtual_cluster_id": "lab", "vctl_ray": "none"}}},
        SUBMITTERS,
    ),
    "POST /api/jobs/{job}/stop": ("/api/jobs/hers/stop", {}, CHANGERS),
    "DELETE /api/jobs/{job}": ("/api/jobs/failed", {}, CHANGERS),
    "GET /api/packages/{protocol}/{package}": ("/api/packages/gcs/a.zip", {}, ALL),
}  # fmt: skip
APART = {"PUT /api/packages/{protocol}/{package}", "GET /api/v1/events/stream"}
"""Routes with a test of their own below."""


@pytest.mark.parametrize("route", HAND)
def test_who_may_use_a_route(route: str, template: Path, tmp_path: Path) -> None:
    path, sent, allowed = HAND[route]
    found = set()
    for name, asking in CALLERS.items():
        home = tmp_path / name
        shutil.copytree(template, home)
        (home / "logs").mkdir(exist_ok=True)
        for log in ("hers", "failed", "task-1"):
            (home / "logs" / f"{log}.log").write_text(f"{CANARY}\n")
        status, said = Shared(home).ask(asking.identity, route.partition(" ")[0], path, asking.job, **sent)
        assert status != 500, said
        if status not in (401, 403):
            found.add(name)
        if name not in READERS and name != "root posing":  # who may read it all
            assert CANARY not in said, name
    assert found - {"other posing", "root posing"} == allowed


def test_every_route_has_a_right_and_a_test(shared: Shared) -> None:
    described = http.describe(shared.app)["paths"]
    rights = {
        f"{m.upper()} {p}": one["x-right"] for p, methods in described.items() for m, one in methods.items()
    }
    assert set(rights.values()) <= {*RIGHTS, http.OPEN_TO_ALL}
    assert {*http.WRITTEN_BY_HAND} == {
        *HAND, *APART, *(route for route, right in rights.items() if right == http.OPEN_TO_ALL)
    }  # fmt: skip


def test_what_is_open_to_all_tells_nothing(shared: Shared) -> None:
    for route, right in http.WRITTEN_BY_HAND.items():
        if right == http.OPEN_TO_ALL:
            status, said = shared.ask(None, *route.split(" "))
            assert status == 200, route
            assert CANARY not in said
    assert shared.ask(None, "GET", "/api/v1/jobs")[0] == 401


def test_every_reading_route_is_silent_to_others(shared: Shared) -> None:
    """All GET routes, with every id of ana's that fits, asked by somebody who sees nothing of hers."""
    ids = {
        "job": ("hers", "running", "failed", "many", "many_2055", "1"), "task": ("task-1",),
        "cluster": ("lab", "primary"), "node": ("n-00",), "vnode": ("lab/0",), "kind": ("jobs", "events"),
    }  # fmt: skip
    asked = 0
    for path, methods in http.describe(shared.app)["paths"].items():
        if "get" not in methods or path.endswith(("/stream", "/wait")) or "packages" in path:
            continue
        word = path.partition("{")[2].partition("}")[0]
        for one in ids[word] if word else ("",):
            target = path.replace(f"{{{word}}}", one) if word else path
            sent = {"params": {"ref": "running/weights"}} if path == "/api/v1/object" else {}
            for who in (BEN, SAM):
                status, said = shared.ask(who, "GET", target, **sent)
                assert status in (200, 403, 404, 400), (target, said)
                assert CANARY not in said, target
                asked += 1
    assert asked > 60
    assert CANARY in shared.ask(ANA, "GET", "/api/v1/jobs/hers")[1]


def test_the_output_over_a_websocket_is_for_readers(shared: Shared) -> None:
    async def said_to(who: Identity | None) -> list[dict[str, Any]]:
        headers = [(b"host", b"localhost")]
        if who is not None:
            headers.append((b"authorization", f"Bearer {shared.token(who)}".encode()))
        sent: list[dict[str, Any]] = []
        incoming = [{"type": "websocket.connect"}]

        async def receive() -> dict[str, Any]:
            if incoming:
                return incoming.pop()
            return await asyncio.Event().wait()  # type: ignore[return-value]  # it never ends

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "websocket", "path": "/api/jobs/failed/logs/tail", "headers": headers, "query_string": b"",
            "subprotocols": [], "extensions": {"websocket.http.response": {}}, "scheme": "ws", "root_path": "",
        }  # fmt: skip
        await shared.app(scope, receive, send)
        return sent

    for who, status in ((BEN, 403), (SAM, 403), (None, 401)):
        said = asyncio.run(said_to(who))
        assert said[0]["status"] == status, who
        assert CANARY not in str(said)
    for who in (ANA, PAT):
        assert CANARY in str(asyncio.run(said_to(who)))


def test_errors_of_routes_name_no_hidden_job(shared: Shared) -> None:
    """The ids that a prefix may mean would be names of a private queue."""
    assert shared.ask(ROOT, "PATCH", "/api/v1/clusters/lab", json={"private_queue": True})[0] == 200
    for path in ("/api/v1/jobs/many_", "/api/v1/jobs/many_/logs", "/api/v1/jobs/many_/wait"):
        status, said = shared.ask(BEN, "GET", path)
        assert (status, "ambiguous" in said) == (400, True), path
        assert "many_1" not in said, path
        assert "many_1" in shared.ask(ANA, "GET", path)[1], path


def test_the_stream_of_events_is_silent_to_others(shared: Shared) -> None:
    async def first(who: Identity) -> str:
        ASKING.set(who)
        request = type("Request", (), {"app": shared.app})()
        text = ""
        events = await events_from(request, shared.server, 0, None, None)
        async for block in events:
            text += block.decode()
            if "job.noted" in text:
                break
        await events.aclose()
        return text

    def seen_by(who: Identity) -> str:
        return asyncio.run(first(who))

    assert CANARY in seen_by(ANA)
    assert CANARY in seen_by(ROOT)
    assert CANARY not in seen_by(BEN)
    assert "job.noted" in seen_by(BEN)


def test_uploads_of_one_user_are_not_those_of_another(shared: Shared, tmp_path: Path) -> None:
    """A client names its archive: who stores another one under that name first would run it as somebody else."""
    import zipfile

    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("main.py", "print(1)")
    path = "/api/packages/gcs/_ray_pkg_00.zip"
    assert shared.ask(BEN, "PUT", path, content=archive.read_bytes())[0] == 200
    assert shared.ask(BEN, "GET", path)[0] == 200
    assert shared.ask(ANA, "GET", path)[0] == 404
    body = {
        "entrypoint": "true",
        "runtime_env": {"working_dir": "gcs://_ray_pkg_00.zip"},
        "metadata": {"vctl_ray": "none"},
    }
    assert shared.ask(ANA, "POST", "/api/jobs/", json=body)[0] == 404
    assert shared.ask(BEN, "POST", "/api/jobs/", json=body)[0] == 200
