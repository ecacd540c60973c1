"""spec 15: errors are exceptions with the codes of the command line, and say what to do."""

import pytest

import vctl
from tests.specification import spec
from vctl.errors import NotFound, VctlError

pytestmark = spec("15.client")


def test_the_text_of_an_error_has_the_fix(tmp_path):
    with pytest.raises(NotFound) as caught:
        vctl.connect(tmp_path / "home").jobs.get("nosuch").info()
    assert caught.value.fix
    assert str(caught.value) == f"{caught.value.problem}\nFix: {caught.value.fix}"
    assert str(VctlError("no advice")) == "no advice"
