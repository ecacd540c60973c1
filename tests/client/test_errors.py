"""spec 15: errors are exceptions with the codes of the command line, and say what to do."""

import pytest

import vctl
from tests.specification import spec
from vctl.errors import BadSpec, NotFound, VctlError

pytestmark = spec("15.client")


def test_the_text_of_an_error_has_the_fix(tmp_path):
    with pytest.raises(NotFound) as caught:
        vctl.connect(tmp_path / "home").jobs.get("nosuch").info()
    assert caught.value.fix
    assert str(caught.value) == f"{caught.value.problem}\nFix: {caught.value.fix}"
    assert str(VctlError("no advice")) == "no advice"


@spec("2.names")
def test_none_for_a_value_that_is_needed_is_named(tmp_path):
    nodes = vctl.connect(tmp_path / "home").physical_nodes
    with pytest.raises(BadSpec) as caught:
        nodes.add(resources=None)
    assert caught.value.details == {"path": "resources"}
    assert nodes.list() == []
