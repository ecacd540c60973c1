"""Resources that the configuration calls unit resources consist of numbered instances, as GPUs do."""

from __future__ import annotations

import json

from tests.integration.conftest import Place


def instances(place: Place) -> object:
    with place.sql() as db:
        return json.loads(db.execute("SELECT instances FROM nodes WHERE node_id = 'n1'").fetchone()[0])


def test_a_node_declared_or_changed_by_hand_gets_instances_of_configured_unit_resources(place: Place) -> None:
    units = {"VCTL_UNIT_RESOURCES": "GPU,TPU"}
    place.ok("node", "add", "n1", "--simulated", "--resources", '{"CPU": 2, "TPU": 2}', **units)
    assert instances(place) == {"TPU": {"0": 10_000, "1": 10_000}}
    place.ok("node", "update", "n1", "--resources", '{"TPU": 1}', **units)
    assert instances(place) == {"TPU": {"0": 10_000}}
