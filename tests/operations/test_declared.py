"""A verb is one declaration: command, route, OpenAPI, remote call and Python method follow from it."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated, Any, get_args, get_type_hints, is_typeddict

import httpx
import pytest
from fastapi import APIRouter, FastAPI

from tests.specification import spec
from vctl import operations
from vctl.cli import catalog
from vctl.config import Config, load
from vctl.errors import BadSpec
from vctl.http import app as http
from vctl.http.context import Server
from vctl.http.derived import add_route
from vctl.operations import clusters, jobs, nodes
from vctl.operations.declare import Context, Local, Operation, Remote, Verb, operation
from vctl.spec import documents, reports
from vctl.spec.params import Arg, Fields, Opt
from vctl.spec.task_request import TaskRequest
from vctl.store.store import Store

COMMANDS = catalog.load_all()
pytestmark = spec("14.remote", "14.api", "13.help", "13.completion")

PACKAGE = Path(http.__file__).parents[1]
HOMES = {
    verb: (module.name, name)
    for module in iter_modules(operations.__path__)
    for name, verb in vars(import_module(f"vctl.operations.{module.name}")).items()
    if isinstance(verb, Operation)
}
"""Every verb of any module -> the module that declares it, and its name there."""
DECLARED = list(HOMES)


@operation("shelf count", "GET /shelves/{shelf}", right="see")
def count(
    context: Context,
    shelf: Annotated[str, Arg("SHELF", help="Name of the shelf.")],
    *,
    times: Annotated[int, Opt("--times", minimum=1, maximum=9, help="How often it is counted.")] = 1,
) -> dict[str, Any]:
    """Count the books of a shelf."""
    return {"shelf": shelf, "books": times * len(list(context.store.home.iterdir()))}


@operation("shelf label", "POST /shelves/{shelf}/label", right="administer")
def label(
    context: Context,  # as every verb
    shelf: Annotated[str, Arg("SHELF", help="Name of the shelf.")],
    *,
    text: Annotated[str | None, Opt("--text", longest=5, help="What is written on it.")] = None,
) -> dict[str, Any]:
    """Write on a shelf."""
    if text == "":
        raise BadSpec("text: it is empty", fix="write something", details={"path": "text"})
    return {"shelf": shelf, "text": text}


class Shelves:
    """An object of a Python API."""

    def __init__(self, backend: Local | Remote) -> None:
        self.backend = backend

    count = Verb(count)
    label = Verb(label)


class Routes:
    """The routes of an application, asked in this process."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app

    def request(self, method: str, path: str, **sent: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.request(method, path, **sent)

        return asyncio.run(ask())

    def get(self, path: str, **sent: Any) -> httpx.Response:
        return self.request("GET", path, **sent)

    def post(self, path: str, **sent: Any) -> httpx.Response:
        return self.request("POST", path, **sent)


class _Wire:
    """What a remote backend has of a connection, over the routes of a server in this process."""

    def __init__(self, client: Routes) -> None:
        self.client = client
        self.asked: list[str] = []

    def ask(self, method: str, path: str, values: dict[str, Any], *, in_query: bool) -> Any:
        self.asked.append(f"{method} {path} {values}")
        sent = {"params": values} if in_query else {"json": values}
        return self.client.request(method, "/api/v1" + path, **sent).json()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    home = str(tmp_path_factory.mktemp("declared") / "home")
    return load(env={"VCTL_HOME": home, "VCTL_LOCAL_NODE": "0", "VCTL_AUTOSTART": "0"})


@pytest.fixture
def local(config: Config) -> Local:
    @contextmanager
    def opened() -> Iterator[Store]:
        with Store.open(config.home()) as store:
            yield store

    return Local(config, opened)


@pytest.fixture(scope="module")
def client(config: Config) -> Routes:
    app = http.create_app(Server(config.home(), config, None))
    router = APIRouter(prefix="/api/v1", tags=["shelves"])
    for verb in (count, label):
        add_route(router, verb)
    app.include_router(router)
    return Routes(app)


def test_a_new_verb_is_one_declaration(local: Local, client: Routes) -> None:
    context = Shelves(local).count("top", times=2)
    assert context == count(local, "top", times=2) == local.call(count, "top", times=2)
    assert client.get("/api/v1/shelves/top", params={"times": 2}).json() == context

    refused = client.get("/api/v1/shelves/top", params={"times": 10})
    assert (refused.status_code, refused.json()["error"]["details"]) == (400, {"path": "times"})
    assert client.post("/api/v1/shelves/top/label").json() == {"shelf": "top", "text": None}
    for wrong in ({"text": "longer"}, {"text": 3}, {"word": "x"}, {"text": ""}):
        assert client.post("/api/v1/shelves/top/label", json=wrong).status_code == 400, wrong


def test_openapi_has_the_parameters_with_their_limits(client: Routes) -> None:
    described = client.get("/openapi.json").json()["paths"]["/api/v1/shelves/{shelf}"]["get"]
    assert described["description"] == "Count the books of a shelf."
    times = next(one for one in described["parameters"] if one["name"] == "times")
    assert (times["schema"]["minimum"], times["schema"]["maximum"]) == (1, 9)
    assert (times["schema"]["default"], times["description"]) == (1, "How often it is counted.")


def test_the_command_has_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    from vctl.cli import declare
    from vctl.cli.output import Answer, done

    monkeypatch.setattr(declare, "COMMANDS", {})

    def picture(found: dict[str, Any]) -> Answer:
        return done(found, found["shelf"], f"{found['books']} books")

    declare.shows(count, picture, "vctl shelf count top", common=())
    command = declare.COMMANDS["shelf count"]
    assert command.help == "Count the books of a shelf."
    assert declare.read(command, ["top", "--times", "3"]) == {"shelf": "top", "times": 3}


def test_a_remote_call_sends_what_differs_from_the_default(client: Routes) -> None:
    wire = _Wire(client)

    @contextmanager
    def connected() -> Iterator[Any]:
        yield wire

    remote = Remote(connected)
    assert Shelves(remote).count("top") == client.get("/api/v1/shelves/top").json()
    assert label(remote, "top", text="abc") == {"shelf": "top", "text": "abc"}
    assert wire.asked == ["GET /shelves/top {}", "POST /shelves/top/label {'text': 'abc'}"]


def test_an_error_names_a_parameter_as_each_front_spells_it(local: Local, client: Routes) -> None:
    """Python has its name, HTTP the field that was sent, and a remote command line gets what it needs for an option."""
    clusters.create(local, "shared", divisible=False, replica_sets={})
    with pytest.raises(BadSpec, match=r"^parent: shared is indivisible"):
        clusters.create(local, "below", parent="shared", replica_sets={})

    sent = {"cluster_id": "below", "parent_id": "shared", "replica_sets": {}}
    error = client.post("/api/v1/clusters", json=sent).json()["error"]
    assert error["message"].startswith("parent_id: shared is indivisible")
    assert error["details"]["path"] == "parent_id"
    assert error["details"]["parts"]["message"][:2] == ["", "parent"]


def test_errors_refer_to_parameters_that_there_are() -> None:
    """A name that no verb and no command has would never become an option."""
    known = {name for one in DECLARED for param in one.params for name in param.references}
    known |= {name for command in COMMANDS.values() for param in command.params for name in param.references}
    found = {
        (path.name, name)
        for path in PACKAGE.rglob("*.py")
        for name in re.findall(r"""\bparam\(["'](\w+)["']\)""", path.read_text(encoding="utf-8"))
    }
    assert len(found) > 40
    assert {(file, name) for file, name in found if name not in known} == set()


@pytest.fixture(scope="module")
def described(client: Routes) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/openapi.json").json()["paths"]
    return found


@pytest.mark.parametrize("verb", DECLARED, ids=lambda verb: verb.name)
def test_every_verb_has_a_route_and_says_what_it_does(
    verb: Operation[..., Any], described: dict[str, Any]
) -> None:
    path = re.sub(r":path}", "}", "/api/v1" + verb.path)
    assert described[path][verb.method.lower()]["description"]
    assert verb.help.endswith(".")
    assert all(param.info.help for param in verb.params)


FORMLESS = {"vc export", "simulate"}
"""A tree file, and figures under the names of what was asked for."""


@pytest.mark.parametrize("verb", DECLARED, ids=lambda verb: verb.name)
def test_every_verb_has_a_documented_reply(verb: Operation[..., Any]) -> None:
    """Spec 14.api: a reply is a form, a list of forms, amounts or counts; whoever calls it can check theirs."""
    reply = get_type_hints(verb.run, localns={**vars(documents), **vars(reports)})["return"]
    parts = [part for outer in get_args(reply) or (reply,) for part in get_args(outer) or (outer,)]
    named = [part for part in parts if is_typeddict(part)]
    assert named or reply in (dict[str, float], dict[str, int]) or verb.name in FORMLESS, reply


@pytest.mark.parametrize("verb", DECLARED, ids=lambda verb: verb.name)
def test_what_every_verb_is_about_can_be_completed(verb: Operation[..., Any]) -> None:
    """Spec 13.completion: the ids in its path are offered by the shell."""
    in_path = zip(verb.params, re.findall(r"\{", verb.path), strict=False) if verb.name in COMMANDS else ()
    assert [param.name for param, _ in in_path if not (param.info.complete or param.info.choices)] == []


BY_ANOTHER = {
    "job submit-many": "job submit", "task run-many": "task run",
    "job dry-run": "job submit", "job get": "job status", "job delete-all": "job delete", "task get": "task status",
    "task why": "why", "objects list": "list", "object get": "get", "repair": "doctor", "scheduler": "daemon",
    "cluster-nodes": "list", "vnodes": "nodes", "vnode": "current-node", "leases": "lease list",
}  # fmt: skip
"""Verb -> the command that carries it out, where that has another name."""


@pytest.mark.parametrize("verb", DECLARED, ids=lambda verb: verb.name)
def test_every_verb_has_a_command(verb: Operation[..., Any]) -> None:
    """Spec 13: what a server and Python can do, the command line can; tests/cli/test_help.py asks for its example."""
    assert (verb.name in BY_ANOTHER) != (verb.name in COMMANDS)
    assert BY_ANOTHER.get(verb.name, verb.name) in COMMANDS


NOT_IN_PYTHON = {"job dry-run", "object get", "summary"}
"""What the command line shows; a program asks for the jobs or objects themselves."""


@pytest.mark.parametrize("verb", DECLARED, ids=lambda verb: verb.name)
def test_every_verb_can_be_called_in_python(verb: Operation[..., Any]) -> None:
    """Spec 14.python: a client has each of them."""
    module, name = HOMES[verb]
    words = re.compile(rf"\b{module}\.{'run' if module == 'simulation' else name}\b")
    client = [path.read_text() for path in (PACKAGE / "client").glob("*.py")]
    assert any(words.search(text) for text in client) != (verb.name in NOT_IN_PYTHON)


def test_names_are_given_once() -> None:
    names = [f"{verb.method} {verb.path}" for verb in DECLARED]
    assert len(names) == len(set(names))


def test_a_declaration_imports_what_carries_it_out_only_when_it_is_called() -> None:
    for path in (PACKAGE / "operations").glob("*.py"):
        text = path.read_text()
        early = re.search(r"^(from|import) vctl\.(ops|store)", text, re.MULTILINE)
        assert "@operation" not in text or not early, path


def test_no_module_is_replaced_and_nothing_is_cast_at_the_seam() -> None:
    """Both backends are typed: no entry of ``sys.modules`` is replaced, no cast stands between caller and verb."""
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert "sys.modules[" not in text, path
        if path.parent.name == "operations":
            assert "cast(" not in text, path


def test_a_submit_sends_the_surroundings_of_the_submitter(
    monkeypatch: pytest.MonkeyPatch, client: Routes, local: Local
) -> None:
    """spec 14.remote: environment and directory are those of the client, not of the server."""
    sent: dict[str, Any] = {}

    class Wire(_Wire):
        def ask(self, method: str, path: str, values: dict[str, Any], *, in_query: bool) -> Any:
            sent.update(values)
            return super().ask(method, path, values, in_query=in_query)

    @contextmanager
    def connected() -> Iterator[Any]:
        yield Wire(client)

    nodes.add(local, resources={"CPU": 1})
    monkeypatch.setenv("VCTL_TOKEN", "secret")
    monkeypatch.setenv("HERE", "yes")
    form = jobs.submit(Remote(connected), ["true"], hold=True)
    assert sent.keys() == {"entrypoint", "environment", "cwd", "hold"}
    assert (sent["cwd"], sent["environment"]["HERE"]) == (str(Path.cwd()), "yes")
    assert not {"VCTL_TOKEN", "VCTL_HOME", "VCTL_ADDRESS"} & sent["environment"].keys()
    assert form["state_reason"] == "Held"


@pytest.mark.parametrize(
    ("given", "amounts"),
    [
        ({}, {"CPU": 10_000}),
        ({"resources": {"GPU": 1}}, {"CPU": 10_000, "GPU": 10_000}),
        ({"resources": {"CPU": 0, "GPU": 1}}, {"GPU": 10_000}),
        ({"num_cpus": "0.5", "memory": "1KiB"}, {"CPU": 5_000, "memory": 1024 * 10_000}),
    ],
)
def test_a_task_takes_one_cpu_unless_cpus_are_named(
    local: Local, given: dict[str, Any], amounts: dict[str, int]
) -> None:
    """spec 10, however it is asked for: command line, HTTP and Python share the parameters."""
    context = Context(None, local.config)  # type: ignore[arg-type]  # it asks for no store
    asked = Fields(lambda: TaskRequest).read(context, {"entrypoint": ["x"], **given})
    assert {name: amount for name, amount in asked.request.items() if amount} == amounts


@spec("7.checks")
@pytest.mark.parametrize("change", [clusters.create, clusters.update], ids=lambda verb: verb.name)
def test_the_id_of_a_cluster_is_checked_before_its_replica_sets(
    local: Local, change: Operation[..., Any]
) -> None:
    for cluster_id, problem in (("", "id is empty"), ("primary", "can not be created or updated")):
        with pytest.raises(BadSpec, match=problem):
            change(local, cluster_id, replica_sets={"t": -1})
    with pytest.raises(BadSpec, match=r"replicas\(-1\) must >= 0, virtual_cluster_id: x"):
        change(local, "x", replica_sets={"t": -1})


@spec("4.errors")
@pytest.mark.parametrize("change", [clusters.create, clusters.update], ids=lambda verb: verb.name)
def test_a_cluster_has_a_spec_or_replica_sets(local: Local, change: Operation[..., Any]) -> None:
    """A server and Python took the replica sets and dropped the spec, which the command line refused."""
    with pytest.raises(BadSpec, match="cannot be combined with replica_sets"):
        change(local, "x", spec={"flexible_resource_min": {"CPU": 1}}, replica_sets={"t": 1})
