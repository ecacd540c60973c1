"""The field ``runtime_env`` of a job: what a private Ray is handed, and what is refused with the way around."""

from __future__ import annotations

from typing import Any

import pytest

from tests.specification import spec
from vctl.errors import BadSpec
from vctl.spec.job_request import JobRay, JobRequest

pytestmark = spec("16.ray")

REFUSED: tuple[tuple[dict[str, Any], str, str, str], ...] = (
    ({"pip": ["x"], "conda": "y"}, "plain", "conda: it is not handed to Ray", "possible are pip, uv, py_modules"),
    ({"env_vars": {"A": "1"}}, "plain", "env_vars: it is not handed to Ray", "use env"),
    ({"working_dir": "."}, "plain", "working_dir: it is not handed to Ray", "use working_dir"),
    ({"uv": ["x"], "config": {}}, "", "only a job with a Ray of its own has uv, config", "add ray"),
)  # fmt: skip


@pytest.mark.parametrize(("runtime_env", "kind", "problem", "fix"), REFUSED)
def test_a_field_is_refused(runtime_env: dict[str, Any], kind: str, problem: str, fix: str) -> None:
    with pytest.raises(BadSpec) as caught:
        JobRequest(argv=("true",), ray=JobRay(kind), runtime_env=runtime_env)
    assert problem in caught.value.problem.replace("--", "")
    assert fix in caught.value.fix.replace("--", "")


@pytest.mark.parametrize(
    "runtime_env", [None, {}, {"pip": ["x"], "py_modules": ["a.whl"], "config": {}}, {"uv": "r.txt"}]
)
def test_the_others_are_taken(runtime_env: dict[str, Any] | None) -> None:
    assert JobRequest(argv=("true",), ray=JobRay("plain"), runtime_env=runtime_env).runtime_env == runtime_env
