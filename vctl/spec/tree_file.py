"""Reads and writes tree files, which describe logical clusters: ``clusters:``, each with ``children:``.

A file is read into a flat list of clusters, parents first, each with its path in the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vctl.core.access import Access
from vctl.core.clusters import PRIMARY, PRIMARY_ALIAS, ClusterSpec
from vctl.core.queue_policy import DEFAULT, QueuePolicy, with_present_order
from vctl.core.resources import DEFAULT_UNITS, Amounts
from vctl.core.values import field, replace, value
from vctl.errors import BadSpec
from vctl.spec.cluster_change import parse_people
from vctl.spec.cluster_spec import parse_cluster_spec, parse_replica_sets, spec_to_document
from vctl.spec.fields import as_list, as_mapping, as_text, child, did_you_mean, refuse, show
from vctl.spec.ids import check_new_cluster_id
from vctl.spec.options import parse_private
from vctl.spec.quantities import parse_resources, resources_document
from vctl.spec.queue_settings import parse_queue, queue_document

CLUSTERS = "clusters"
ID, PARENT, DIVISIBLE, REPLICAS, SPEC = "id", "parent", "divisible", "replica_sets", "spec"
BORROW, LENDING, PRIVATE, QUEUE, CHILDREN = "borrow_limit", "lending_limit", "private", "queue", "children"
USER_TEMPLATE = "user_template"
SUBMITTERS, ADMINS, PRIVATE_QUEUE = "submitters", "admins", "private_queue"
FIELDS = (
    ID,
    PARENT,
    DIVISIBLE,
    REPLICAS,
    SPEC,
    BORROW,
    LENDING,
    PRIVATE,
    USER_TEMPLATE,
    QUEUE,
    SUBMITTERS,
    ADMINS,
    PRIVATE_QUEUE,
    CHILDREN,
)
MAX_CLUSTERS = 10_000
_EXAMPLE = '{"clusters": [{"id": "team-a", "replica_sets": {"8c16g": 2}}]}'


@value(frozen=True, slots=True)
class TreeCluster:
    """One cluster of the file; an omitted field has its default, not the value of the present cluster."""

    cluster_id: str
    parent_id: str
    divisible: bool
    spec: ClusterSpec
    borrow_limit: Amounts | None = None
    lending_limit: Amounts = field(default_factory=dict)
    path: str = ""
    queue: QueuePolicy = DEFAULT
    private: tuple[str, ...] = ()
    access: Access = Access()
    user_template: ClusterSpec | None = None


class _Reader:
    def __init__(self, units: Iterable[str], *, camel_case: bool) -> None:
        self.units = frozenset(units)
        self.camel_case = camel_case
        self.clusters: dict[str, TreeCluster] = {}

    def level(self, value: object, path: str, parent: TreeCluster | None) -> None:
        """Read all clusters of a list, each followed by the clusters inside it."""
        items = as_list(value, path, path.rpartition(".")[2], '[{"id": "team-a"}]')
        for index, item in enumerate(items):
            self.cluster(item, f"{path}[{index}]", parent)

    def cluster(self, value: object, path: str, parent: TreeCluster | None) -> None:
        """Read one cluster and the clusters inside it."""
        given = _known(as_mapping(value, path, "a cluster", '{"id": "team-a"}'), path, FIELDS)
        cluster_id = _id(given, path)
        if cluster_id in self.clusters:
            other = self.clusters[cluster_id].path
            raise refuse(child(path, ID), f"{cluster_id} is described at {other} already", "keep one of them")
        if len(self.clusters) >= MAX_CLUSTERS:
            raise refuse(path, f"more than {MAX_CLUSTERS} clusters", "split the file")
        cluster = self.clusters[cluster_id] = TreeCluster(
            cluster_id,
            _parent(given, path, parent),
            _divisible(given, path),
            self._spec(given, path),
            self._limit(given, BORROW, path) or None,
            self._limit(given, LENDING, path),
            path,
            replace(DEFAULT, **parse_queue(with_present_order(given.get(QUEUE, {})), child(path, QUEUE))),  # type: ignore[arg-type]
            _private(given, path),
            _access(given, path),
            self._user_template(given, path),
        )
        if CHILDREN in given:
            self.level(given[CHILDREN], child(path, CHILDREN), cluster)

    def _spec(self, given: Mapping[str, object], path: str) -> ClusterSpec:
        spec_path = child(path, SPEC)
        if SPEC in given and REPLICAS in given:
            raise refuse(spec_path, f"it cannot be combined with {REPLICAS}", "keep one of the two")
        if SPEC in given:
            return parse_cluster_spec(
                given[SPEC], units=self.units, camel_case=self.camel_case, logical=True, path=spec_path
            )
        counts = parse_replica_sets(given.get(REPLICAS, {}), child(path, REPLICAS))
        return ClusterSpec(flexible=False, replica_sets=counts)

    def _user_template(self, given: Mapping[str, object], path: str) -> ClusterSpec | None:
        if not given.get(USER_TEMPLATE):
            return None
        return parse_cluster_spec(
            given[USER_TEMPLATE], units=self.units, camel_case=self.camel_case, logical=True,
            path=child(path, USER_TEMPLATE),
        )  # fmt: skip

    def _limit(self, given: Mapping[str, object], name: str, path: str) -> Amounts:
        return parse_resources(given[name], child(path, name), self.units) if name in given else {}


def parse_tree(
    document: object, *, units: Iterable[str] = DEFAULT_UNITS, camel_case: bool = False
) -> list[TreeCluster]:
    """Read a tree file: its clusters, parents first, in the order of the file.

    ``camel_case``: specs may have camelCase names.
    """
    given = _known(as_mapping(document, "", "a tree file", _EXAMPLE), "", (CLUSTERS,))
    if CLUSTERS not in given:
        raise refuse(CLUSTERS, "a tree file needs it", f"write {_EXAMPLE}, or `clusters: []` for none")
    reader = _Reader(units, camel_case=camel_case)
    reader.level(given[CLUSTERS], CLUSTERS, None)
    for cluster in reader.clusters.values():
        above = reader.clusters.get(cluster.parent_id)
        if above is not None and not cluster.path.startswith(above.path + "."):
            raise refuse(
                child(cluster.path, PARENT),
                f"{above.cluster_id} is described in this file, at {above.path}",
                f"put {cluster.cluster_id} into its {CHILDREN}",
            )
    return list(reader.clusters.values())


def _known(document: Mapping[str, object], path: str, names: tuple[str, ...]) -> dict[str, object]:
    """The fields that are present and not null; refuses unknown fields."""
    for key in document:
        if key not in names:
            raise refuse(child(path, key), f"unknown field {show(key)}", did_you_mean(key, names))
    return {key: value for key, value in document.items() if value is not None}


def _id(given: Mapping[str, object], path: str) -> str:
    id_path = child(path, ID)
    if ID not in given:
        raise refuse(id_path, "a cluster needs an id", "write id: team-a")
    text = as_text(given[ID], id_path, "a virtual cluster id")
    try:
        return check_new_cluster_id(text)
    except BadSpec as error:
        raise refuse(id_path, error.problem, error.fix) from None


def _parent(given: Mapping[str, object], path: str, parent: TreeCluster | None) -> str:
    parent_path = child(path, PARENT)
    named = as_text(given[PARENT], parent_path, "a virtual cluster id") if PARENT in given else None
    if parent is None:
        return PRIMARY if named in (None, PRIMARY_ALIAS) else str(named)
    if named not in (None, parent.cluster_id):
        raise refuse(
            parent_path, f"it stands inside {parent.cluster_id}, not {show(named)}", f"leave {PARENT} out"
        )
    return parent.cluster_id


def _private(given: Mapping[str, object], path: str) -> tuple[str, ...]:
    field_path = child(path, PRIVATE)
    words = as_list(given.get(PRIVATE, []), field_path, PRIVATE, "[tmp, pids]")
    texts = [as_text(word, f"{field_path}[{index}]", "a word") for index, word in enumerate(words)]
    return parse_private(texts, field_path) if texts else ()


def _access(given: Mapping[str, object], path: str) -> Access:
    """Who may submit, who administers, and whether names are hidden."""
    people: dict[str, tuple[str, ...]] = {}
    for name in (SUBMITTERS, ADMINS):
        listed = as_list(given.get(name, []), child(path, name), "names", '["ana", "@lab"]')
        texts = [as_text(one, f"{child(path, name)}[{at}]", "a name") for at, one in enumerate(listed)]
        people[name] = parse_people(texts, child(path, name))
    hides = given.get(PRIVATE_QUEUE)
    if not isinstance(hides, bool | None):
        fix = f"write {PRIVATE_QUEUE}: true"
        raise refuse(child(path, PRIVATE_QUEUE), f"it must be true or false, not {show(hides)}", fix)
    return Access(people[SUBMITTERS], people[ADMINS], hides)


def _divisible(given: Mapping[str, object], path: str) -> bool:
    """The value of ``divisible``; a cluster with children is divisible by default."""
    field_path = child(path, DIVISIBLE)
    value = given.get(DIVISIBLE, bool(given.get(CHILDREN)))
    if not isinstance(value, bool):
        raise refuse(field_path, f"it must be true or false, not {show(value)}", "write divisible: true")
    if given.get(CHILDREN) and not value:
        raise refuse(field_path, "an indivisible cluster holds no children", "write divisible: true")
    return value


def cluster_document(cluster: TreeCluster) -> dict[str, object]:
    """The fields of one cluster in a tree file, without its parent."""
    spec = cluster.spec
    document: dict[str, object] = {ID: cluster.cluster_id, DIVISIBLE: cluster.divisible}
    if spec.flexible or spec.groups:
        document[SPEC] = spec_to_document(spec)
    else:
        document[REPLICAS] = dict(sorted(spec.replica_sets.items()))
    if cluster.borrow_limit:
        document[BORROW] = resources_document(cluster.borrow_limit)
    if cluster.lending_limit:
        document[LENDING] = resources_document(cluster.lending_limit)
    if cluster.private:
        document[PRIVATE] = list(cluster.private)
    if cluster.user_template is not None:
        document[USER_TEMPLATE] = spec_to_document(cluster.user_template)
    if cluster.queue != DEFAULT:
        usual = queue_document(DEFAULT)
        settings = queue_document(cluster.queue).items()
        document[QUEUE] = {name: value for name, value in settings if value != usual[name]}
    return document | cluster.access.given


def tree_document(clusters: Iterable[TreeCluster]) -> dict[str, object]:
    """The tree file of clusters, given with parents before their children; ``parse_tree`` reads it back."""
    top: list[object] = []
    known: dict[str, dict[str, object]] = {}
    for cluster in clusters:
        document = cluster_document(cluster)
        if not cluster.divisible:
            del document[DIVISIBLE]
        above = known.get(cluster.parent_id)
        if above is not None:
            inside = above.setdefault(CHILDREN, [])
            assert isinstance(inside, list)
            inside.append(document)
        else:
            if cluster.parent_id != PRIMARY:
                document = {ID: cluster.cluster_id, PARENT: cluster.parent_id} | document
            top.append(document)
        known[cluster.cluster_id] = document
    return {CLUSTERS: top}
