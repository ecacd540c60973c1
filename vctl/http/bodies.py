"""Bodies of requests. Their shape is checked here; what the values mean, in ``reading``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    StrictBool,
    StrictInt,
    StrictStr,
    WithJsonSchema,
)

from vctl.spec.job_request import LEAST_PRIORITY, MOST_PRIORITY

Document = dict[str, Any]
Text = Annotated[StrictStr, Field(max_length=100_000)]
LONGEST = 100_000


def _kernel_text(value: object) -> str:
    """pydantic takes only Unicode for a string; arguments, paths and variables are any bytes."""
    if not isinstance(value, str):
        raise ValueError("Input should be a valid string")  # pydantic's way to refuse
    if len(value) > LONGEST:
        raise ValueError(f"String should have at most {LONGEST} characters")
    return value


KernelText = Annotated[
    str, PlainValidator(_kernel_text, json_schema_input_type=str), WithJsonSchema({"type": "string"})
]
Id = Annotated[StrictStr, Field(max_length=1024)]
Seconds = Annotated[float, Field(ge=0, le=1e10)]
Revision = StrictInt | Annotated[str, Field(pattern=r"^[0-9]{1,30}$")]
Truth = StrictBool | Literal["true", "false"]
Many = Annotated[list[Id], Field(max_length=100_000)]


class Body(BaseModel):
    """No field is ignored: an unknown one is a mistake that somebody wants to hear of."""

    model_config = ConfigDict(extra="forbid")


class VirtualCluster(Body):
    """A wanted state: final counts of whole nodes by template; what is not named counts as 0."""

    virtualClusterId: Id = ""  # noqa: N815
    divisible: Truth = False
    replicaSets: dict[str, StrictInt] = {}  # noqa: N815
    revision: Revision = 0


class NodesToRemove(Body):
    """Nodes to remove from a cluster."""

    virtualClusterId: Id = ""  # noqa: N815
    nodesToRemove: Many = []  # noqa: N815


class Task(Body):
    """A command inside a running job; the fields mean what the options of ``vctl task run`` mean."""

    entrypoint: Annotated[list[KernelText], Field(min_length=1, max_length=10_000)]
    job: Id | None = None
    resources: Document | None = None
    label_selector: dict[str, Any] | None = None
    strategy: Id = "HYBRID"
    name: Text = ""
    max_retries: Annotated[StrictInt, Field(ge=-1, le=10**9)] = 0
    detach: StrictBool = False
    env: dict[KernelText, KernelText] = {}
    environment: dict[KernelText, KernelText] | None = None
    cwd: KernelText | None = None
    grace_s: Seconds | None = None
    inputs: Annotated[list[Id], Field(max_length=1000)] = []
    outputs: Annotated[list[Id], Field(max_length=1000)] = []


class Model(Body):
    """A workload of the Lublin-Feitelson model."""

    jobs: Annotated[StrictInt, Field(ge=1, le=20_000)] = 1000
    seed: StrictInt = 1
    load: Annotated[float, Field(gt=0, le=100)] = 0.9


class Simulation(Body):
    """A workload to simulate (the lines of a trace, a model, or the recorded history) and the policies to compare."""

    trace: StrictStr | None = None
    model: Model | None = None
    since: Annotated[float, Field(ge=0, le=9e9)] | None = None
    until: Annotated[float, Field(ge=0, le=9e9)] | None = None
    cluster: Id | None = None
    policies: list[Text] = []
    nodes: list[Annotated[StrictInt, Field(ge=1, le=100_000)]] = []
    template: Id | None = None
    node_resources: Document | None = None
    limit_factor: float | None = None


class Job(Body):
    """A command and what is reserved for it; the fields mean what the options of ``vctl job submit`` mean.

    ``environment`` is the submitter's own, ``env`` is set on top of it.
    """

    entrypoint: Annotated[list[KernelText], Field(min_length=1, max_length=10_000)]
    cluster: Id | None = None
    virtual_cluster: Document | None = None
    num_cpus: float | None = None
    num_gpus: float | None = None
    memory: float | str | None = None
    nodes: StrictInt | None = None
    entrypoint_resources: Document | None = None
    priority: Annotated[StrictInt, Field(ge=LEAST_PRIORITY, le=MOST_PRIORITY)] = 0
    time_limit_s: Seconds | None = None
    name: Text = ""
    submission_id: Id | None = None
    env: dict[KernelText, KernelText] = {}
    environment: dict[KernelText, KernelText] | None = None
    clean_env: StrictBool = False
    cwd: KernelText | None = None
    metadata: dict[str, str] = {}
    labels: dict[str, str] = {}
    grace_s: Seconds | None = None
    per_node: StrictBool = False
    max_retries: Annotated[StrictInt, Field(ge=-1, le=10**9)] = 0
    retry_on: list[Id] = ["NodeFailed"]
    backoff_s: Seconds = 1
    hold: StrictBool = False
    begin_at: Annotated[float, Field(ge=0, le=9e9)] | None = None
    signal: Id | None = None
    after: list[Id] = []
    array: Id | None = None
    job_scope: Literal["own", "all"] = "own"
    label: StrictBool = False
