"""Models of answers for the published OpenAPI. Answers do not pass through these models, and may have more fields."""

from __future__ import annotations

from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model

from vctl.spec import documents as forms

Amounts = dict[str, float]


class Document(BaseModel):
    """A JSON object, which may have more fields."""

    model_config = ConfigDict(extra="allow")


class ErrorFields(Document):
    """An error and its fix; ``exit_code`` is that of the command line."""

    code: str
    exit_code: int
    message: str
    hint: str
    details: dict[str, Any]


class Error(Document):
    """The envelope of an error."""

    error: ErrorFields


class Managed(Document):
    """The envelope of the management API, for success and failure."""

    result: bool
    msg: str
    data: dict[str, Any]


def _model(form: type) -> type[Document]:
    fields: dict[str, Any] = {name: (kind, ...) for name, kind in get_type_hints(form).items()}
    return create_model(form.__name__.removesuffix("Form"), __base__=Document, __doc__=form.__doc__, **fields)


MODELS: dict[object, type[Document]] = {
    form: _model(form)
    for form in (forms.JobForm, forms.TaskForm, forms.ObjectForm, forms.ClusterForm, forms.NodeForm)
}
Job, Task, Object, Cluster, Node = MODELS.values()
MODELS |= {forms.ClusterTree: Cluster, forms.RemovedCluster: Cluster}


class Listing(Document):
    """A list in its envelope."""

    api_version: str
    kind: str
    items: list[dict[str, Any]]
    total: int


def _listing(model: type[Document], about: str) -> type[Listing]:
    fields: dict[str, Any] = {"items": (list[model], ...)}  # type: ignore[valid-type]  # a value
    return create_model(f"{model.__name__}List", __base__=Listing, __doc__=about, **fields)


JobList = _listing(Job, "Jobs.")
TaskList = _listing(Task, "Tasks.")
ObjectList = _listing(Object, "Objects.")
ClusterList = _listing(Cluster, "Virtual clusters.")
NodeList = _listing(Node, "Physical nodes.")


def _watched(name: str, about: str, **fields: Any) -> type[Document]:
    return create_model(name, __base__=Document, __doc__=about, over=(bool, ...), **fields)


Watched = _watched(
    "Watched", "A job, and whether it is over; null once it was deleted.", job=(Job | None, ...)
)
WatchedTask = _watched(
    "WatchedTask", "A task, and whether it is over; null once it was forgotten.", task=(Task | None, ...)
)


class Version(Document):
    """As Ray's, so that its clients accept this server."""

    version: str
    ray_version: str
    ray_commit: str
    session_name: str


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": Error, "description": "The request is not valid."},
    401: {"model": Error, "description": "The token is missing or wrong."},
    403: {"model": Error, "description": "Not permitted, or asked under the name of another host."},
    404: {"model": Error, "description": "No such object."},
    409: {"model": Error, "description": "It exists, is in use or has changed, or resources are short."},
    413: {"model": Error, "description": "Too large."},
    503: {"model": Error, "description": "The state cannot be written now."},
}
MANAGEMENT_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {**answer, "model": Managed} for status, answer in ERRORS.items()
}


def good(model: Any, description: str = "Done.") -> dict[int | str, dict[str, Any]]:
    """The documentation of a successful answer."""
    return {200: {"model": model, "description": description}}
