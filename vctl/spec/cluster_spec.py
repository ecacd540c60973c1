"""Reads a cluster spec, a document of the user, into a ``ClusterSpec``; each error names its field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vctl.core.clusters import POLICIES, ClusterSpec, FixedNode, Group
from vctl.core.resources import DEFAULT_UNITS
from vctl.core.values import value
from vctl.errors import BadSpec
from vctl.spec.fields import (
    as_count,
    as_list,
    as_mapping,
    as_text,
    child,
    did_you_mean,
    nearest,
    refuse,
    show,
)
from vctl.spec.quantities import KNOWN, MAX_NODES, format_amount, parse_resources, resources_document
from vctl.spec.selectors import parse_labels, parse_selector

MAX_REPLICAS = 2**31 - 1

MIN, MAX, FIXED, REPLICAS = (
    "flexible_resource_min",
    "flexible_resource_max",
    "fixed_size_nodes",
    "replica_sets",
)
NODES, POLICY = "nodes", "scheduling_policy"
RESOURCES, LABELS, SELECTOR = "resources", "labels", "label_selector"
SPEC_FIELDS, GROUP_FIELDS, NODE_FIELDS = (
    (MIN, MAX, FIXED, REPLICAS),
    (NODES, POLICY),
    (RESOURCES, LABELS, SELECTOR),
)

# field names of earlier drafts of the proposal and of similar systems -> the present name, for fixes
_OLDER = {
    "flex_resource_min": MIN,
    "flex_resource_max": MAX,
    "min_resources": MIN,
    "max_resources": MAX,
    "min": MIN,
    "max": MAX,
    "min_nodes": FIXED,
    "fixed_nodes": FIXED,
    "bundles": NODES,
    "strategy": POLICY,
    "policy": POLICY,
    "placement_strategy": POLICY,
    "parent_node_selector": SELECTOR,
    "node_selector": SELECTOR,
    "selector": SELECTOR,
    "bundle_label_selector": SELECTOR,
}
_EXAMPLE = '{"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}]}]}'


@value(frozen=True, slots=True)
class _Rules:
    """The settings with which a document is read."""

    units: frozenset[str]
    camel_case: bool


def parse_cluster_spec(
    document: object,
    *,
    units: Iterable[str] = DEFAULT_UNITS,
    camel_case: bool = False,
    logical: bool = False,
    cluster_id: str | None = None,
    path: str = "",
) -> ClusterSpec:
    """Read the spec of a cluster; None and ``{}`` mean minimum 0 and maximum infinite.

    ``camel_case``: camelCase names are accepted too. ``logical``: for a logical cluster, where replica sets
    cannot be combined with resources. ``cluster_id`` appears in the messages about replica sets, as in
    ant-ray's API. ``path`` is the position of the spec in a larger document.
    """
    if document is None:
        return ClusterSpec()
    rules = _Rules(frozenset(units), camel_case)
    fields = _fields(as_mapping(document, path, "a cluster spec", _EXAMPLE), path, SPEC_FIELDS, rules)
    counts = parse_replica_sets(*fields[REPLICAS], cluster_id=cluster_id) if REPLICAS in fields else {}
    groups = _groups(*fields[FIXED], rules) if FIXED in fields else ()
    _check_number(groups, counts, path, logical=logical)
    minimum, maximum = (
        parse_resources(*fields[name], units) if name in fields else {} for name in (MIN, MAX)
    )
    for name in minimum:
        if name in maximum and minimum[name] > maximum[name]:
            raise refuse(
                child(fields[MAX][1], name),
                f"the maximum {format_amount(maximum[name])} is below the minimum {format_amount(minimum[name])}",
                f"raise {MAX} or lower {MIN}",
            )
    if (
        logical
        and REPLICAS in fields
        and (others := {MIN, MAX} & fields.keys() | ({FIXED} if groups else set()))
    ):
        raise refuse(
            fields[min(others)][1],
            f"it cannot be combined with {REPLICAS} in a logical cluster",
            f"give either {REPLICAS} or resources",
        )
    named = bool(groups or any(counts.values()) or (logical and REPLICAS in fields))
    flexible = MIN in fields or MAX in fields or not named
    return ClusterSpec(minimum, maximum or None, groups, counts, flexible)


def _fields(
    document: Mapping[str, object], path: str, known: tuple[str, ...], rules: _Rules
) -> dict[str, tuple[object, str]]:
    """The fields that are present and not null: name -> (value, path in the user's spelling)."""
    spellings = {name: name for name in known}
    if rules.camel_case:
        spellings |= {camel(name): name for name in known}
    fields: dict[str, tuple[object, str]] = {}
    for key, given in document.items():
        field_path = child(path, key)
        name = spellings.get(key)
        if name is None:
            raise _unknown(key, field_path, known)
        if given is None:
            continue
        if name in fields:
            raise refuse(field_path, f"{name} is given in two spellings", "keep one of them")
        fields[name] = (given, field_path)
    return fields


def camel(name: str) -> str:
    """``scheduling_policy`` -> ``schedulingPolicy``."""
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def _unknown(key: str, path: str, known: tuple[str, ...]) -> BadSpec:
    snake = "".join(f"_{c.lower()}" if c.isupper() else c for c in key[:100])
    older = _OLDER.get(snake)
    if (resource := nearest(key, KNOWN)) is not None:
        amounts = f'{{"{resource}": 1}}'
        around = {RESOURCES: amounts, NODES: f'[{{"{RESOURCES}": {amounts}}}]', MIN: amounts}
        where = next(name for name in around if name in known)
        return refuse(
            path, f"{show(key)} is a resource, not a field", f'write {{"{where}": {around[where]}}}'
        )
    if older in known:
        return refuse(path, f"unknown field {show(key)}", f"write {older}")
    if not nearest(key, known):
        for where, names in (("the spec", SPEC_FIELDS), ("a group", GROUP_FIELDS), ("a node", NODE_FIELDS)):
            if snake in names or older in names:
                return refuse(path, f"unknown field {show(key)}", f"{older or snake} belongs to {where}")
    return refuse(path, f"unknown field {show(key)}", did_you_mean(key, known))


def parse_replica_sets(value: object, path: str, *, cluster_id: str | None = None) -> dict[str, int]:
    """Template id -> count of whole nodes."""
    document = as_mapping(value, path, REPLICAS, '{"8c16g": 2}')
    counts: dict[str, int] = {}
    for template, count in document.items():
        template_path = child(path, template)
        if cluster_id is not None:
            _check_like_ant_ray(template, count, template_path, cluster_id)
        if not template or len(template) > 253 or not template.isprintable():
            raise refuse(
                template_path,
                f"{show(template)} is not a template id",
                "see `vctl node list` for the templates",
            )
        counts[template] = as_count(count, template_path, "a replica count", maximum=MAX_REPLICAS)
    return counts


def _check_like_ant_ray(template: str, count: object, path: str, cluster_id: str) -> None:
    problem, fix = "", ""
    if isinstance(count, int) and not isinstance(count, bool) and count < 0:
        problem, fix = f"replicas({show(count)}) must >= 0", "write a final count of 0 or more"
    elif not template:
        problem, fix = "template_id is empty", "see `vctl node list` for the templates"
    if problem:
        message = f"Invalid request, {problem}, virtual_cluster_id: {cluster_id}"
        raise BadSpec(message, fix=fix, details={"path": path})


def _groups(value: object, path: str, rules: _Rules) -> tuple[Group, ...]:
    """``[{nodes, scheduling_policy}, ..]``, or a bare list of nodes, which is one PACK group."""
    items = as_list(value, path, FIXED, '[{"nodes": [{"resources": {"CPU": 1}}]}]')
    _check_length(items, path)
    documents = [
        as_mapping(item, f"{path}[{index}]", "a group", '{"nodes": [..]}') for index, item in enumerate(items)
    ]
    bare = [not any(name in document for name in _group_words(rules)) for document in documents]
    if documents and all(bare):
        return (Group(_nodes(documents, path, rules)),)
    if any(bare):
        where = f"{path}[{bare.index(True)}]"
        raise refuse(where, "a node without a group stands among groups", 'write {"nodes": [..]} around it')
    return tuple(_group(document, f"{path}[{index}]", rules) for index, document in enumerate(documents))


def _group_words(rules: _Rules) -> tuple[str, ...]:
    """The field names by which an object is a group and not a node."""
    words = (NODES, POLICY, "bundles", "strategy", "policy")
    return (*words, camel(POLICY)) if rules.camel_case else words


def _group(document: Mapping[str, object], path: str, rules: _Rules) -> Group:
    fields = _fields(document, path, GROUP_FIELDS, rules)
    if NODES not in fields:
        raise refuse(path, "a group needs its nodes", 'write {"nodes": [{"resources": {"CPU": 1}}]}')
    value, nodes_path = fields[NODES]
    items = as_list(value, nodes_path, NODES, '[{"resources": {"CPU": 1}}]')
    if not items:
        raise refuse(nodes_path, "a group without nodes", "add a node, or leave the group out")
    _check_length(items, nodes_path)
    policy = "PACK"
    if POLICY in fields:
        policy = as_text(*fields[POLICY], "a scheduling policy")
        if policy not in POLICIES:
            raise refuse(fields[POLICY][1], f"unknown policy {show(policy)}", did_you_mean(policy, POLICIES))
    return Group(_nodes(items, nodes_path, rules), policy)


def _nodes(items: Iterable[object], path: str, rules: _Rules) -> tuple[FixedNode, ...]:
    return tuple(_node(item, f"{path}[{index}]", rules) for index, item in enumerate(items))


def _node(item: object, path: str, rules: _Rules) -> FixedNode:
    example = '{"resources": {"CPU": 1}}'
    fields = _fields(as_mapping(item, path, "a node", example), path, NODE_FIELDS, rules)
    if RESOURCES not in fields:
        raise refuse(path, "a fixed node needs resources", f"write {example}")
    resources = parse_resources(*fields[RESOURCES], rules.units)
    if not any(resources.values()):
        raise refuse(fields[RESOURCES][1], "a fixed node without resources", f"write {example}")
    labels = parse_labels(*fields[LABELS]) if LABELS in fields else {}
    selector = parse_selector(*fields[SELECTOR]) if SELECTOR in fields else ()
    return FixedNode(resources, labels, selector)


def _check_length(items: list[object], path: str) -> None:
    if len(items) > MAX_NODES:
        raise refuse(path, f"{len(items)} entries, at most {MAX_NODES} are accepted", "split the request")


def _check_number(groups: tuple[Group, ...], counts: Mapping[str, int], path: str, *, logical: bool) -> None:
    """Limit the nodes of a gang. Replica sets of a logical cluster have no limit; too many are a shortage."""
    number = sum(len(group.nodes) for group in groups) + (0 if logical else sum(counts.values()))
    if number > MAX_NODES:
        raise refuse(
            child(path, FIXED if groups else REPLICAS),
            f"{number} nodes in one spec, at most {MAX_NODES} are accepted",
            "split the request",
        )


def spec_to_document(spec: ClusterSpec) -> dict[str, object]:
    """The canonical JSON form of a spec, which ``parse_cluster_spec`` reads back as an equal spec.

    A spec with a flexible part always has a minimum, which may be ``{}``; an infinite maximum is left out.
    """
    document: dict[str, object] = {}
    if spec.flexible:
        document[MIN] = resources_document(spec.flexible_min)
    if spec.flexible_max:
        document[MAX] = resources_document(spec.flexible_max)
    if spec.groups:
        document[FIXED] = [
            {NODES: [_node_document(node) for node in group.nodes], POLICY: group.policy}
            for group in spec.groups
        ]
    if spec.replica_sets or not document:
        document[REPLICAS] = dict(sorted(spec.replica_sets.items()))
    return document


def _node_document(node: FixedNode) -> dict[str, object]:
    document: dict[str, object] = {RESOURCES: resources_document(node.resources)}
    if node.labels:
        document[LABELS] = dict(sorted(node.labels.items()))
    if node.selector:
        document[SELECTOR] = {condition.key: str(condition) for condition in node.selector}
    return document
