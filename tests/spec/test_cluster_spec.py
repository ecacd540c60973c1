"""The cluster spec: what is read, which field is named when it is refused, and the way back."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.specification import spec
from vctl.core.clusters import POLICIES, ClusterSpec, FixedNode, Group
from vctl.core.labels import Condition
from vctl.errors import BadSpec
from vctl.spec.cluster_spec import parse_cluster_spec, spec_to_document
from vctl.spec.selectors import parse_selector
from vctl.spec.shape import shape_key
from vctl.spec.source import parse_text

pytestmark = spec("4.fields", "4.errors")

EXAMPLE = """{
  "flexible_resource_min": {"CPU": 1},
  "flexible_resource_max": {"CPU": 10},
  "fixed_size_nodes": [
    {"nodes": [{"resources": {"GPU": 1}, "labels": {"bundle_index": "0"},
                "label_selector": {"ray.io/accelerator-type": "A100"}},
               {"resources": {"GPU": 1}}],
     "scheduling_policy": "STRICT_SPREAD"}],
  "replica_sets": {"4c8g": 1, "8c16g": 1}
}"""


def node(cpu=10_000, **rest):
    return FixedNode({"CPU": cpu}, **rest)


def parse(text, **how):
    return parse_cluster_spec(parse_text(text, "a cluster spec", "--virtual-cluster"), **how)


def test_the_example_of_the_specification():
    a100 = (Condition("ray.io/accelerator-type", "in", ("A100",)),)
    gpu = {"GPU": 10_000}
    assert parse(EXAMPLE) == ClusterSpec(
        flexible_min={"CPU": 10_000},
        flexible_max={"CPU": 100_000},
        groups=(Group((FixedNode(gpu, {"bundle_index": "0"}, a100), FixedNode(gpu)), "STRICT_SPREAD"),),
        replica_sets={"4c8g": 1, "8c16g": 1},
    )


GOOD = {
    "nothing": ("null", ClusterSpec()),
    "empty object": ("{}", ClusterSpec()),
    "nulls are absent": (
        '{"flexible_resource_min": null, "fixed_size_nodes": null, "replica_sets": null}',
        ClusterSpec(),
    ),
    "an empty maximum is infinite": ('{"flexible_resource_max": {}}', ClusterSpec()),
    "a maximum of 0 stays": ('{"flexible_resource_max": {"CPU": 0}}', ClusterSpec(flexible_max={"CPU": 0})),
    "a minimum equal to the maximum": (
        '{"flexible_resource_min": {"CPU": 2}, "flexible_resource_max": {"CPU": 2}}',
        ClusterSpec({"CPU": 20_000}, {"CPU": 20_000}),
    ),
    "fixed nodes alone never grow": (
        '{"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}]}]}',
        ClusterSpec(groups=(Group((node(),)),), flexible=False),
    ),
    "a bare list of nodes is one group": (
        '{"fixed_size_nodes": [{"resources": {"CPU": 1}}, {"resources": {"CPU": 2}}]}',
        ClusterSpec(groups=(Group((node(), node(20_000))),), flexible=False),
    ),
    "an empty minimum beside fixed nodes is a flexible part": (
        '{"flexible_resource_min": {}, "fixed_size_nodes": [{"resources": {"CPU": 1}}]}',
        ClusterSpec(groups=(Group((node(),)),)),
    ),
    "an empty list asks for nothing": ('{"fixed_size_nodes": []}', ClusterSpec()),
    "replica sets alone never grow": (
        '{"replica_sets": {"a": 1}}',
        ClusterSpec(replica_sets={"a": 1}, flexible=False),
    ),
    "an exponent is a number": (
        '{"flexible_resource_min": {"CPU": 1e1}}',
        ClusterSpec({"CPU": 100_000}),
    ),
}


@pytest.mark.parametrize(("text", "want"), GOOD.values(), ids=GOOD)
def test_good_specs(text, want):
    assert parse(text) == want


def fixed(inner):
    return '{"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}, ' + inner + "]}]}"


SECOND = "fixed_size_nodes[0].nodes[1]"
BAD = {
    "list": ("[]", None, "fixed_size_nodes"),
    "number": ("5", None, "fixed_size_nodes"),
    "string": ('"CPU"', None, "fixed_size_nodes"),
    "unknown key": ('{"colour": 1}', "colour", "valid names: fixed_size_nodes"),
    "misspelt key": ('{"fixed_size_node": []}', "fixed_size_node", "did you mean fixed_size_nodes?"),
    "older minimum": ('{"flex_resource_min": {}}', "flex_resource_min", "write flexible_resource_min"),
    "older maximum": ('{"flex_resource_max": {}}', "flex_resource_max", "write flexible_resource_max"),
    "older nodes": ('{"min_nodes": []}', "min_nodes", "write fixed_size_nodes"),
    "camel case from a file": ('{"fixedSizeNodes": []}', "fixedSizeNodes", "did you mean fixed_size_nodes?"),
    "field of a node": ('{"resources": {}}', "resources", "belongs to a node"),
    "field of a group": ('{"scheduling_policy": "PACK"}', "scheduling_policy", "belongs to a group"),
    "minimum is a number": ('{"flexible_resource_min": 1}', "flexible_resource_min", '{"CPU": 1}'),
    "minimum is negative": (
        '{"flexible_resource_min": {"CPU": -1}}',
        "flexible_resource_min.CPU",
        "0 or more",
    ),
    "minimum too fine": (
        '{"flexible_resource_min": {"CPU": 0.00001}}',
        "flexible_resource_min.CPU",
        "4 decimals",
    ),
    "digits that a float would lose": (
        '{"flexible_resource_min": {"CPU": 0.1000000000000000000001}}',
        "flexible_resource_min.CPU",
        "4 decimals",
    ),
    "minimum above 2^53": (
        '{"flexible_resource_min": {"CPU": 9007199254740993}}',
        "flexible_resource_min.CPU",
        "smaller",
    ),
    "fraction above one device": (
        '{"flexible_resource_min": {"GPU": 1.5}}',
        "flexible_resource_min.GPU",
        "1 or 2",
    ),
    "below the minimum": (
        '{"flexible_resource_min": {"CPU": 2}, "flexible_resource_max": {"CPU": 1}}',
        "flexible_resource_max.CPU",
        "raise flexible_resource_max",
    ),
    "infinite as a word": (
        '{"flexible_resource_max": {"CPU": "inf"}}',
        "flexible_resource_max.CPU",
        "number",
    ),
    "misspelt resource": ('{"flexible_resource_max": {"cpus": 1}}', "flexible_resource_max.cpus", "CPU"),
    "groups are an object": ('{"fixed_size_nodes": {"nodes": []}}', "fixed_size_nodes", "[{"),
    "group is a number": ('{"fixed_size_nodes": [1]}', "fixed_size_nodes[0]", "nodes"),
    "group is null": ('{"fixed_size_nodes": [null]}', "fixed_size_nodes[0]", "nodes"),
    "group without nodes": (
        '{"fixed_size_nodes": [{"scheduling_policy": "PACK"}]}',
        "fixed_size_nodes[0]",
        '"nodes"',
    ),
    "empty group": ('{"fixed_size_nodes": [{"nodes": []}]}', "fixed_size_nodes[0].nodes", "add a node"),
    "empty object in the list": ('{"fixed_size_nodes": [{}]}', "fixed_size_nodes[0]", "resources"),
    "nodes are an object": ('{"fixed_size_nodes": [{"nodes": {}}]}', "fixed_size_nodes[0].nodes", "[{"),
    "unknown key in a group": (
        '{"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}], "x": 1}]}',
        "fixed_size_nodes[0].x",
        "nodes",
    ),
    "node key in a group": (
        '{"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}], "labels": {}}]}',
        "fixed_size_nodes[0].labels",
        "belongs to a node",
    ),
    "bundles": (
        '{"fixed_size_nodes": [{"bundles": [{"CPU": 1}]}]}',
        "fixed_size_nodes[0].bundles",
        "write nodes",
    ),
    "node among groups": (
        '{"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}]}, {"resources": {"CPU": 1}}]}',
        "fixed_size_nodes[1]",
        "around",
    ),
    "policy in lower case": (
        '{"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}], "scheduling_policy": "spread"}]}',
        "fixed_size_nodes[0].scheduling_policy",
        "did you mean SPREAD?",
    ),
    "policy misspelt": (
        '{"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}], "scheduling_policy": "STRICT_PAK"}]}',
        "fixed_size_nodes[0].scheduling_policy",
        "did you mean STRICT_PACK?",
    ),
    "policy is a number": (
        '{"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}], "scheduling_policy": 1}]}',
        "fixed_size_nodes[0].scheduling_policy",
        "quotes",
    ),
    "node is a string": (fixed('"GPU"'), SECOND, '"resources"'),
    "node without resources": (fixed('{"labels": {}}'), SECOND, '"resources"'),
    "node with empty resources": (fixed('{"resources": {}}'), f"{SECOND}.resources", '"resources"'),
    "node with only zeros": (fixed('{"resources": {"CPU": 0}}'), f"{SECOND}.resources", '"resources"'),
    "node with a bad amount": (fixed('{"resources": {"GPU": 1.5}}'), f"{SECOND}.resources.GPU", "1 or 2"),
    "node with a misspelt resource": (fixed('{"resources": {"gpu": 1}}'), f"{SECOND}.resources.gpu", "GPU"),
    "node with an older selector": (
        fixed('{"resources": {"GPU": 1}, "parent_node_selector": {}}'),
        f"{SECOND}.parent_node_selector",
        "write label_selector",
    ),
    "node with a misspelt field": (
        fixed('{"resources": {"GPU": 1}, "label": {}}'),
        f"{SECOND}.label",
        "did you mean labels?",
    ),
    "labels are a list": (fixed('{"resources": {"GPU": 1}, "labels": ["a"]}'), f"{SECOND}.labels", "value"),
    "label is a number": (
        fixed('{"resources": {"GPU": 1}, "labels": {"a": 0}}'),
        f"{SECOND}.labels.a",
        "quotes",
    ),
    "label value too long": (
        fixed('{"resources": {"GPU": 1}, "labels": {"a": "' + "x" * 64 + '"}}'),
        f"{SECOND}.labels.a",
        "shorten",
    ),
    "label key with a space": (
        fixed('{"resources": {"GPU": 1}, "labels": {"a b": "x"}}'),
        f'{SECOND}.labels["a b"]',
        "name",
    ),
    "system label": (
        fixed('{"resources": {"GPU": 1}, "labels": {"ray.io/vnode_id": "x"}}'),
        f'{SECOND}.labels["ray.io/vnode_id"]',
        "another",
    ),
    "selector is a string": (
        fixed('{"resources": {"GPU": 1}, "label_selector": "A100"}'),
        f"{SECOND}.label_selector",
        "name",
    ),
    "selector value is malformed": (
        fixed('{"resources": {"GPU": 1}, "label_selector": {"a": "in(x"}}'),
        f"{SECOND}.label_selector.a",
        "forms",
    ),
    "replica sets are a list": ('{"replica_sets": ["4c8g"]}', "replica_sets", "8c16g"),
    "negative count": ('{"replica_sets": {"4c8g": -1}}', "replica_sets.4c8g", "0 or more"),
    "half a node": ('{"replica_sets": {"4c8g": 0.5}}', "replica_sets.4c8g", "number"),
    "count is a string": ('{"replica_sets": {"4c8g": "1"}}', "replica_sets.4c8g", "number"),
    "count is true": ('{"replica_sets": {"4c8g": true}}', "replica_sets.4c8g", "number"),
    "empty template": ('{"replica_sets": {"": 1}}', 'replica_sets[""]', "templates"),
    "too many whole nodes": ('{"replica_sets": {"a": 10001}}', "replica_sets", "split"),
    "not JSON": ("{", "--virtual-cluster", "write } at its end"),
    "duplicate key": ('{"replica_sets": {"a": 1, "a": 2}}', "--virtual-cluster", "keep one"),
    "not a number": ('{"flexible_resource_max": {"CPU": NaN}}', "--virtual-cluster", "infinite"),
    "infinity": ('{"flexible_resource_max": {"CPU": Infinity}}', "--virtual-cluster", "infinite"),
}


@pytest.mark.parametrize(("text", "path", "fix"), BAD.values(), ids=BAD)
def test_bad_specs_name_the_field_and_the_fix(text, path, fix):
    with pytest.raises(BadSpec) as caught:
        parse(text)
    error = caught.value
    assert error.exit_code == 2
    assert error.details.get("path") == path
    assert error.problem.startswith(f"{path}: " if path else "a cluster spec")
    assert fix in error.fix


def test_too_many_nodes_are_refused():
    many = {"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}] * 6000}] * 2}
    with pytest.raises(BadSpec, match="12000 nodes") as caught:
        parse_cluster_spec(many)
    assert caught.value.details == {"path": "fixed_size_nodes"}
    with pytest.raises(BadSpec, match="10001 entries"):
        parse_cluster_spec({"fixed_size_nodes": [{"nodes": [{"resources": {"CPU": 1}}] * 10_001}]})


LOGICAL_BAD = {
    "replica sets and a minimum": (
        '{"replica_sets": {"a": 1}, "flexible_resource_min": {}}',
        "flexible_resource_min",
    ),
    "replica sets and a maximum": (
        '{"replica_sets": {}, "flexible_resource_max": {"CPU": 1}}',
        "flexible_resource_max",
    ),
    "replica sets and nodes": (
        '{"replica_sets": {"a": 1}, "fixed_size_nodes": [{"resources": {"CPU": 1}}]}',
        "fixed_size_nodes",
    ),
}


@pytest.mark.parametrize(("text", "path"), LOGICAL_BAD.values(), ids=LOGICAL_BAD)
def test_replica_sets_stand_alone_in_a_logical_cluster(text, path):
    parse(text)  # fine in a job cluster
    with pytest.raises(BadSpec) as caught:
        parse(text, logical=True)
    assert caught.value.details == {"path": path}


def test_replica_sets_of_a_logical_cluster():
    assert parse('{"replica_sets": {}}', logical=True) == ClusterSpec(flexible=False)
    many = parse('{"replica_sets": {"a": 20000}}', logical=True)  # a shortage is found later
    assert many == ClusterSpec(replica_sets={"a": 20_000}, flexible=False)


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ({"a": -1}, "Invalid request, replicas(-1) must >= 0, virtual_cluster_id: X"),
        ({"": 1}, "Invalid request, template_id is empty, virtual_cluster_id: X"),
        ({"": -1}, "Invalid request, replicas(-1) must >= 0, virtual_cluster_id: X"),
    ],
)
def test_the_sentences_of_ant_ray(counts, sentence):
    with pytest.raises(BadSpec) as caught:
        parse_cluster_spec({"replica_sets": counts}, logical=True, cluster_id="X")
    assert caught.value.problem == sentence


def test_camel_case_on_http():
    camel = {
        "flexibleResourceMax": {"CPU": 1},
        "fixedSizeNodes": [
            {
                "nodes": [{"resources": {"CPU": 1}, "labelSelector": {"a": "b"}}],
                "schedulingPolicy": "SPREAD",
            }
        ],
        "replicaSets": {"a": 1},
    }
    snake = {
        "flexible_resource_max": {"CPU": 1},
        "fixed_size_nodes": [
            {
                "nodes": [{"resources": {"CPU": 1}, "label_selector": {"a": "b"}}],
                "scheduling_policy": "SPREAD",
            }
        ],
        "replica_sets": {"a": 1},
    }
    want = parse_cluster_spec(snake)
    assert parse_cluster_spec(camel, camel_case=True) == parse_cluster_spec(snake, camel_case=True) == want
    with pytest.raises(BadSpec) as caught:
        parse_cluster_spec({"replica_sets": {}, "replicaSets": {}}, camel_case=True)
    assert caught.value.details == {"path": "replicaSets"}
    with pytest.raises(BadSpec) as caught:
        parse_cluster_spec({"fixedSizeNodes": [{"nodes": [{"resources": {"gpu": 1}}]}]}, camel_case=True)
    assert caught.value.details == {"path": "fixedSizeNodes[0].nodes[0].resources.gpu"}


SELECTORS = {
    "v": Condition("k", "in", ("v",)),
    "!v": Condition("k", "!in", ("v",)),
    "in(b,a)": Condition("k", "in", ("a", "b")),
    "in( a , b )": Condition("k", "in", ("a", "b")),
    "!in(a,b)": Condition("k", "!in", ("a", "b")),
    "in(a)": Condition("k", "in", ("a",)),
    "exists()": Condition("k", "exists"),
    "!exists()": Condition("k", "!exists"),
    "exists": Condition("k", "in", ("exists",)),
}


@spec("4.labels")
@pytest.mark.parametrize(("text", "want"), SELECTORS.items(), ids=SELECTORS)
def test_the_forms_of_a_selector(text, want):
    assert parse_selector({"k": text}, "s") == (want,)
    assert parse_selector({"k": str(want)}, "s") == (want,)


def test_a_list_means_in_and_order_does_not_count():
    assert parse_selector({"b": ["y", "x", "x"], "a": "1"}, "s") == parse_selector(
        {"a": "1", "b": "in(x,y)"}, "s"
    )


BAD_SELECTORS = [
    "",
    "!",
    "in(",
    "in(a",
    "in()",
    "in(a,)",
    "!in()",
    "a)",
    "In(a)",
    "notin(a)",
    "exists(x)",
    "a,b",
]


@spec("4.labels")
@pytest.mark.parametrize(
    "value",
    [*BAD_SELECTORS, "!!v", "v!", "in(a)b", "a b", None, 1, True, {}, [], ["a", 1], ["!a"], [""]],
    ids=repr,
)
def test_bad_selectors(value):
    with pytest.raises(BadSpec, match=r"^s\.k") as caught:
        parse_selector({"k": value}, "s")
    assert caught.value.fix


OWN = "kPrimaryClusterID##" + "j" * 100
SYSTEM_SELECTORS = {
    ("ray.io/vcluster_id", "kPrimaryClusterID"): ("in", "kPrimaryClusterID"),
    ("ray.io/vcluster_id", "primary"): ("in", "kPrimaryClusterID"),
    ("ray.io/vcluster_id", "kPrimaryClusterID##s"): ("in", "kPrimaryClusterID##s"),
    ("ray.io/vcluster_id", "!primary##s##deep"): ("!in", "kPrimaryClusterID##s##deep"),
    ("ray.io/vcluster_id", f"in({OWN},team)"): ("in", OWN, "team"),
    ("ray.io/vcluster_id", "!in(primary##s, kPrimaryClusterID##s)"): ("!in", "kPrimaryClusterID##s"),
    ("ray.io/vnode_id", "8c16g-00"): ("in", "8c16g-00"),
    ("ray.io/vnode_id", f"{OWN}/0"): ("in", f"{OWN}/0"),
    ("ray.io/vnode_id", "!in(primary##s/0,team/12)"): ("!in", "kPrimaryClusterID##s/0", "team/12"),
    ("ray.io/node-id", "n" * 128): ("in", "n" * 128),
    ("ray.io/node-id", "in(8c16g-00,8c16g-01)"): ("in", "8c16g-00", "8c16g-01"),
    ("ray.io/node-id", "exists()"): ("exists",),
    ("ray.io/vnode_id", "!exists()"): ("!exists",),
}
BAD_SYSTEM_SELECTORS = [
    ("ray.io/vcluster_id", "a##"), ("ray.io/vcluster_id", "##a"), ("ray.io/vcluster_id", "a#b"),
    ("ray.io/vcluster_id", "team/0"), ("ray.io/vcluster_id", "a b"), ("ray.io/vcluster_id", ""),
    ("ray.io/vcluster_id", "in()"), ("ray.io/vcluster_id", "x" * 2000), ("ray.io/vnode_id", "team/"),
    ("ray.io/vnode_id", "/0"), ("ray.io/vnode_id", "team/x"), ("ray.io/vnode_id", "a##b"), ("ray.io/vnode_id", "a/1/2"),
    ("ray.io/vnode_id", "team/\u0663"), ("ray.io/node-id", "n/0"), ("ray.io/node-id", "a##b"),
    ("ray.io/node-id", "n" * 129), ("ray.io/node-id", None), ("ray.io/node-id", 1),
]  # fmt: skip


@spec("4.labels", "5.labels")
@pytest.mark.parametrize(("given", "want"), SYSTEM_SELECTORS.items(), ids=str)
def test_system_labels_are_selected_by_ids_as_they_are(given, want):
    """Spec 4: also longer than a label may be, and by the name that tables show."""
    key, text = given
    condition = Condition(key, want[0], tuple(sorted(want[1:])))
    assert parse_selector({key: text}, "s") == (condition,)
    assert parse_selector({key: str(condition)}, "s") == (condition,)


@spec("4.errors")
@pytest.mark.parametrize(("key", "value"), BAD_SYSTEM_SELECTORS)
def test_what_is_no_id_is_refused_for_a_system_label(key, value):
    with pytest.raises(BadSpec) as caught:
        parse_selector({key: value}, "s")
    assert caught.value.details == {"path": f's["{key}"]'}
    assert caught.value.fix


@spec("4.labels")
@pytest.mark.parametrize("value", ["a##b", "a/0", "j" * 64])
def test_other_labels_have_no_such_values(value):
    with pytest.raises(BadSpec, match="is not a label value"):
        parse_selector({"ray.io/other": value}, "s")


# ---- the way back ----

names = st.sampled_from(["CPU", "memory", "custom", "node:1"])
amounts = st.dictionaries(
    names, st.integers(0, 10**9).map(lambda n: n * 10_000), max_size=3
) | st.dictionaries(st.sampled_from(["CPU", "custom"]), st.integers(0, 10**13), max_size=2)
words = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,8}[a-z0-9])?", fullmatch=True)
conditions = st.builds(
    lambda key, operator, values: Condition(key, operator, tuple(sorted(values)) if "in" in operator else ()),
    words,
    st.sampled_from(["in", "!in", "exists", "!exists"]),
    st.sets(words, min_size=1, max_size=3),
)
selectors = st.lists(conditions, max_size=2, unique_by=lambda c: c.key).map(
    lambda cs: tuple(sorted(cs, key=lambda c: c.key))
)
nodes = st.builds(
    FixedNode, amounts.filter(lambda a: any(a.values())), st.dictionaries(words, words, max_size=2), selectors
)
groups = st.builds(Group, st.lists(nodes, min_size=1, max_size=3).map(tuple), st.sampled_from(POLICIES))


@st.composite
def specs(draw):
    least, rest = draw(amounts), draw(amounts)
    most = {name: least.get(name, 0) + more for name, more in rest.items()} or None
    placed = tuple(draw(st.lists(groups, max_size=2)))
    counts = draw(st.dictionaries(words, st.integers(0, 5), max_size=2))
    if draw(st.booleans()) and (placed or any(counts.values())):
        return ClusterSpec({}, None, placed, counts, flexible=False)
    return ClusterSpec(least, most, placed, counts)


@given(specs())
def test_a_spec_survives_its_document(spec):
    text = json.dumps(spec_to_document(spec))
    again = parse(text)
    assert again == spec
    assert parse_cluster_spec(spec_to_document(spec)) == spec
    assert json.dumps(spec_to_document(again)) == text
    assert shape_key(again, {}) == shape_key(spec, {})


def test_the_canonical_document():
    assert spec_to_document(ClusterSpec()) == {"flexible_resource_min": {}}
    assert spec_to_document(ClusterSpec(flexible=False)) == {"replica_sets": {}}
    assert parse_cluster_spec({"replica_sets": {}}, logical=True) == ClusterSpec(flexible=False)
    assert spec_to_document(parse(EXAMPLE)) == json.loads(EXAMPLE)


def test_the_shape_ignores_what_does_not_decide():
    one = parse('{"flexible_resource_min": {"CPU": 1, "GPU": 0}, "replica_sets": {"a": 0}}')
    same = parse('{"flexible_resource_min": {"CPU": 1.0}}')
    assert shape_key(one, {"CPU": 0}) == shape_key(same, {})
    labelled = parse('{"fixed_size_nodes": [{"resources": {"CPU": 1}, "labels": {"i": "0"}}]}')
    plain = parse('{"fixed_size_nodes": [{"resources": {"CPU": 1}}]}')
    assert shape_key(labelled, {}) == shape_key(plain, {})


SHAPES = [
    ClusterSpec(),
    ClusterSpec(flexible=False),
    ClusterSpec({"CPU": 1}),
    ClusterSpec({"GPU": 1}),
    ClusterSpec(flexible_max={"CPU": 1}),
    ClusterSpec(flexible_max={"CPU": 0}),
    ClusterSpec(groups=(Group((node(),)),)),
    ClusterSpec(groups=(Group((node(),)),), flexible=False),
    ClusterSpec(groups=(Group((node(), node())),)),
    ClusterSpec(groups=(Group((node(),)), Group((node(),)))),
    ClusterSpec(groups=(Group((node(),), "SPREAD"),)),
    ClusterSpec(groups=(Group((node(selector=(Condition("a", "exists"),)),)),)),
    ClusterSpec(groups=(Group((node(selector=(Condition("b", "exists"),)),)),)),
    ClusterSpec(replica_sets={"a": 1}),
    ClusterSpec(replica_sets={"a": 2}),
    ClusterSpec({"a'": 1, "b": 1}),
    ClusterSpec({"a':1,'b": 1}),
]


def test_the_shape_tells_different_requests_apart():
    keys = [shape_key(spec, entry) for spec in SHAPES for entry in ({}, {"CPU": 1})]
    assert len(set(keys)) == len(keys)


def test_the_shape_is_short():
    wide = ClusterSpec(groups=(Group((node(),) * 10_000),))
    assert len(shape_key(wide, {})) < 60
    mixed = ClusterSpec(groups=(Group(tuple(node(i + 1) for i in range(1000))),))
    assert shape_key(mixed, {}).startswith("sha256:")
    assert shape_key(mixed, {}) != shape_key(mixed, {"CPU": 1})


def test_amounts_of_the_python_api():
    assert parse_cluster_spec({"flexible_resource_min": {"CPU": 0.1}}).flexible_min == {"CPU": 1_000}
    assert parse_cluster_spec({"flexible_resource_min": {"CPU": Decimal("0.1")}}).flexible_min == {
        "CPU": 1_000
    }


# ---- whatever comes in: a spec or a BadSpec ----

KEYS = [
    "nodes",
    "resources",
    "labels",
    "label_selector",
    "scheduling_policy",
    "fixed_size_nodes",
    "replica_sets",
]
keys = (
    st.sampled_from([*KEYS, "flexible_resource_min", "flexible_resource_max", "CPU", "GPU", "memory"])
    | st.text()
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.decimals()
    | st.text()
    | st.sampled_from(POLICIES)
)
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=12,
)


@given(documents, st.booleans())
def test_any_document_is_a_spec_or_a_bad_spec(document, logical):
    check_any_document(document, logical=logical)


@given(
    st.dictionaries(
        st.sampled_from(KEYS[5:]), st.lists(st.dictionaries(keys, documents, max_size=2), max_size=2)
    )
)
def test_almost_specs(document):
    check_any_document(document, logical=False)


def check_any_document(document, *, logical):
    error = spec = None
    try:
        spec = parse_cluster_spec(document, logical=logical, camel_case=logical)
    except BadSpec as refusal:
        error = refusal
    if error:
        assert error.fix
        assert len(error.problem) < 2000
    else:
        assert parse_cluster_spec(spec_to_document(spec), logical=logical) == spec
