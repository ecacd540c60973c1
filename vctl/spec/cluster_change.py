"""The wanted state of a cluster, from the command line, HTTP, Python or a tree file: created or changed at once.

The fields of ``ClusterChange`` are the declaration of the parameters of ``vc create`` and ``vc update``.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from vctl.core.clusters import ClusterSpec
from vctl.core.resources import Amounts
from vctl.core.values import value
from vctl.errors import param
from vctl.spec.fields import refuse, show
from vctl.spec.ids import JOB_MARK
from vctl.spec.options import NOTHING, parse_private
from vctl.spec.params import Made, Opt, Reading, Written, document_of
from vctl.spec.quantities import parse_resources

Document = Mapping[str, Any] | None
MAX_PEOPLE = 1000
_NAME = re.compile(r"@?[A-Za-z0-9_][A-Za-z0-9_.-]{0,255}\$?\Z")
"""A login name, or a group with ``@`` in front of it."""


def _spec(reading: Reading, document: object) -> ClusterSpec:
    from vctl.spec.cluster_spec import parse_cluster_spec

    given = reading.given
    return parse_cluster_spec(
        document_of(document),
        units=reading.units,
        camel_case=True,
        logical=JOB_MARK not in (given.get("parent") or given["cluster_id"]),
        cluster_id=given["cluster_id"],
    )


def parse_people(given: Sequence[str], path: str) -> tuple[str, ...]:
    """Read names of users and ``@groups``, each once."""
    for name in given:
        if not _NAME.match(name):
            raise refuse(
                path, f"{show(name)} is no name of a user or a group", "write ana, or @lab for a group"
            )
    if len(given) > MAX_PEOPLE:
        raise refuse(path, f"{len(given)} names are too many", f"write at most {MAX_PEOPLE}, or a group")
    return tuple(dict.fromkeys(given))


def _people(name: str) -> Callable[[Reading, Sequence[str]], object]:
    return lambda _, given: parse_people(given, param(name))


def _user_template(reading: Reading, document: object) -> tuple[ClusterSpec, ...]:
    """The spec of the clusters of users; empty for none."""
    from vctl.spec.cluster_spec import parse_cluster_spec

    given = document_of(document)
    if given == {}:
        return ()
    path = param("user_template")
    return (parse_cluster_spec(given, units=reading.units, camel_case=True, logical=True, path=path),)


@value(frozen=True, slots=True, kw_only=True)
class ClusterChange:
    """The wanted state of a cluster; None leaves a field as it is.

    At creation, None means: no resources, no limit, and indivisible unless it is inside the cluster of a job.
    A borrow limit of ``{}`` means no limit; a lending limit of ``{}`` means that nothing is lent.
    """

    divisible: Annotated[
        bool | None,
        Opt(
            "--divisible", off="--indivisible",
            help="Holds child clusters, one per job; else jobs share it (default). Inside a job always so."
            " A cluster keeps it.",
        ),
    ] = None  # fmt: skip
    replica_sets: Annotated[
        Document,
        Opt(
            "--replica-sets", metavar="JSON|@FILE|-", reads="templates",
            help='Whole nodes by template, final counts: {"8c16g": 2}.',
        ),
    ] = None  # fmt: skip
    spec: Annotated[
        ClusterSpec | None,
        Made(
            _spec,
            spec=Annotated[
                Mapping[str, Any] | Written | None,
                Opt(
                    "--spec", metavar="JSON|@FILE|-", reads="cluster spec",
                    help="Resource spec instead of whole nodes: minimum, maximum, fixed nodes.",
                ),
            ],
        ),
    ] = None  # fmt: skip
    borrow_limit: Annotated[
        Amounts | None,
        Made(
            lambda reading, document: parse_resources(document, param("borrow_limit"), reading.units),
            borrow_limit=Annotated[
                Document,
                Opt(
                    "--borrow-limit", metavar="JSON", reads="resources",
                    help="Limit of borrowing above its minimum; {} for no limit.",
                ),
            ],
        ),
    ] = None  # fmt: skip
    lending_limit: Annotated[
        Amounts | None,
        Made(
            lambda reading, document: parse_resources(document, param("lending_limit"), reading.units),
            lending_limit=Annotated[
                Document,
                Opt(
                    "--lending-limit", metavar="JSON", reads="resources",
                    help="Limit of lending from its unused minimum; {} for none.",
                ),
            ],
        ),
    ] = None  # fmt: skip
    private: Annotated[
        tuple[str, ...] | None,
        Made(
            lambda _, words: parse_private(words, param("private")),
            lambda words: {"private": words or (NOTHING,)},
            private=Annotated[
                Sequence[str] | None,
                Opt(
                    "--private", metavar="tmp,pids|none", reads="words", complete="private",
                    help="What each job in it has for itself at least, as `vctl job submit --private`.",
                ),
            ],
        ),
    ] = None  # fmt: skip
    user_template: Annotated[
        tuple[ClusterSpec, ...] | None,
        Made(
            _user_template,
            user_template=Annotated[
                Mapping[str, Any] | Written | None,
                Opt(
                    "--user-template", metavar="JSON|@FILE|-", reads="cluster spec",
                    help="Give each user who submits to it a cluster in it, with this spec; {} for no template.",
                ),
            ],
        ),
    ] = None  # fmt: skip
    queue: Annotated[Document, Opt(help="How its queue is served.")] = None
    submitters: Annotated[
        tuple[str, ...] | None,
        Made(
            _people("submitters"),
            submitters=Annotated[
                Sequence[str] | None,
                Opt(
                    "--submitters", metavar="NAME,@GROUP,…", reads="words", longest=MAX_PEOPLE,
                    help="Shared service: who may submit, here and below; '' for those of the cluster above"
                    " (by default everybody).",
                ),
            ],
        ),
    ] = None  # fmt: skip
    admins: Annotated[
        tuple[str, ...] | None,
        Made(
            _people("admins"),
            admins=Annotated[
                Sequence[str] | None,
                Opt(
                    "--admins", metavar="NAME,@GROUP,…", reads="words", longest=MAX_PEOPLE,
                    help="Shared service: who changes it and what is below it, and sees and stops all jobs there;"
                    " '' for nobody but those of the clusters above.",
                ),
            ],
        ),
    ] = None  # fmt: skip
    private_queue: Annotated[
        bool | None,
        Opt(
            "--private-queue", off="--public-queue",
            help="Shared service: hide names of jobs and their users from others, here and below.",
        ),
    ] = None  # fmt: skip

    def __post_init__(self) -> None:
        if self.spec is not None and self.replica_sets is not None:
            raise refuse(
                param("spec"), f"it cannot be combined with {param('replica_sets')}", "keep one of the two"
            )

    @property
    def access(self) -> dict[str, object]:
        """What it says about rights: the fields of an ``Access`` that it changes."""
        said = {"submitters": self.submitters, "admins": self.admins, "private_queue": self.private_queue}
        return {name: value for name, value in said.items() if value is not None}
