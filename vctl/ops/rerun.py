"""Submitting a job once more, as it was: command, environment, directory, request and rules; a new id."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from vctl.core.clusters import ClusterSpec
from vctl.errors import BadSpec
from vctl.ops import arrays, jobs, rights, submitting
from vctl.spec.job_request import JobRequest
from vctl.spec.options import parse_array, parse_warning_signal
from vctl.store import jobs as table
from vctl.store import rows
from vctl.store.store import Row, Store

if TYPE_CHECKING:
    from vctl.spec.documents import JobForm


_TIES = {"terminal": "its terminal", "stdin": "its standard input", "hold": "its allocation"}


def rerun(store: Store, ref: str | int) -> JobForm:
    """Queue a job, or all of an array, again. One member of an array sees the index that it had."""
    with store.snapshot():
        array = arrays.named(store, ref)
        job_id = array["first_job_id"] if array is not None else jobs.resolve(store, ref)
        row, launch = table.get(store, job_id), table.launch(store, job_id)
        assert row is not None
        assert launch is not None
        rights.check_job(store, row)
        request = _request(row, launch, array)
    return submitting.submit(store, request, environment={"PATH": request.env.get("PATH", os.defpath)})


def _request(row: Row, launch: Row, array: Row | None) -> JobRequest:
    options, rules, spec = rows.loads(launch["options"]), rows.loads(row["rules"]), rows.spec(row["spec"])
    if (relay := options.get("relay")) is not None and relay[0] != "label":
        raise BadSpec(
            f"job {row['submission_id']} depended on the program that submitted it: {_TIES[relay[0]]}",
            fix="run that program again",
        )
    env = dict(rows.loads(launch["env"]))
    if array is None and row["array_id"] is not None:
        env |= {
            "VCTL_ARRAY_ID": row["array_id"],
            "VCTL_ARRAY_INDEX": str(row["array_index"]),
            "VCTL_ARRAY_COUNT": str(launch["count"]),
        }
    signal = rules.get("signal")
    retries: dict[str, Any] = {
        name: rules[name] for name in ("max_retries", "backoff_s") if rules.get("max_retries")
    }
    if retries:
        retries["retry_on"] = tuple(rules["retry_on"])
    return JobRequest(
        argv=tuple(rows.loads(launch["argv"])),
        cluster=row["parent_cluster_id"],
        spec=None if row["shares_parent"] or spec == ClusterSpec() else spec,
        entry=None if options.get("sees_all") or row["per_node"] else rows.loads(row["entry"]),
        priority=row["priority"],
        time_limit_s=row["time_limit_s"],
        name=row["name"] or "",
        env=env,
        clean_env=True,
        cwd=launch["cwd"],
        metadata=rows.loads(row["metadata"]),
        grace_s=row["grace_s"],
        per_node=bool(row["per_node"]),
        label=relay is not None,
        signal=None if signal is None else parse_warning_signal(f"{signal['name']}@{signal['before_s']:g}"),
        array=None if array is None else parse_array(array["range"]),
        job_scope=rules.get("job_scope", rights.OWN),
        **retries,
    )
