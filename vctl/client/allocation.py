"""An allocation: a job without a command, which holds resources for a program until the program releases them or ends.

The process of the job only waits for the program. The program takes the variables of the job into its environment, so
that all its later work happens in the cluster of that job.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vctl import ops
from vctl.client import inside
from vctl.client.handles import Job
from vctl.core.jobs import SUCCEEDED
from vctl.errors import Conflict, NotFound, NotPermitted, TimedOut

if TYPE_CHECKING:
    import socket

    from vctl.client.handles import ConfiguredBackend, Local
    from vctl.core.clusters import ClusterSpec
    from vctl.runtime.attach_socket import AttachSocket

LOOK_S = 0.1
COMMAND = ("allocation",)
"""The shown command of the job; it is never run."""


class HeldAllocation:
    """The resources that a program holds; the constructor returns when they are granted."""

    def __init__(
        self, backend: ConfiguredBackend, spec: ClusterSpec, *, name: str | None, timeout_s: float | None
    ) -> None:
        from vctl.client.handles import Local
        from vctl.runtime.attach_socket import AttachSocket
        from vctl.spec.job_request import JobRequest

        if not isinstance(backend, Local):
            raise NotPermitted(
                "a program outside a job can hold resources only on the machine of the state directory,"
                " not through a server",
                fix="submit the program: connect().submit([sys.executable, 'PROGRAM'], virtual_cluster=...)",
            )
        config = backend.config
        with AttachSocket(config.home()) as listener:
            request = JobRequest(
                argv=COMMAND,
                cluster=config.get("cluster"),
                spec=spec,
                entry=None if spec.has_gang else {},
                submission_id=name,
                job_scope=config.get("job_scope"),
                notify=config.get("notify"),
                attach=("hold", os.fspath(listener.path)),
            )
            with backend.opened() as store:
                form = ops.submitting.submit(store, request)
            self.job = Job(backend, str(form["submission_id"]))
            try:
                self._line = self._granted(backend, listener, timeout_s)
            except BaseException:
                self.job.stop(wait=False)
                raise
        self.variables = self._receive()

    def _granted(self, backend: Local, listener: AttachSocket, timeout_s: float | None) -> socket.socket:
        """Wait until the job runs; returns the connection to its process. Raises Conflict, TimedOut."""
        give_up = None if timeout_s is None else time.monotonic() + timeout_s
        while (line := listener.opened(LOOK_S)) is None:
            over, form = backend.wait("jobs", self.job.submission_id, 0)
            form = form or self.job.info()
            if over:
                raise Conflict(
                    f"allocation {self.job.submission_id} is {form['status']}: {_why(form)}",
                    fix=f"see `vctl job status {self.job.submission_id}`",
                )
            if give_up is not None and time.monotonic() >= give_up:
                raise TimedOut(
                    f"the allocation did not start within {timeout_s:g} s: {form['message']}",
                    fix="ask for less, wait longer with timeout_s, or free resources;"
                    " `vctl vc tree` shows their holders",
                )
        return line

    def _receive(self) -> Mapping[str, str]:
        with self._line.makefile("rb") as stream:
            variables: Mapping[str, str] = json.loads(stream.readline() or b"{}")
        return variables

    def close(self, *, orderly: bool = True) -> None:
        """Release the resources and wait until they are free. Raises Conflict when the job had already ended."""
        with contextlib.suppress(OSError):  # the process of the job may be gone
            self._line.sendall(b"0" if orderly else b"1")
        self._line.close()
        try:
            self.job.wait()
            form = self.job.info()
        except NotFound:
            return  # the job was deleted
        if orderly and form["status"] != SUCCEEDED:  # it succeeds only when the program releases it
            raise Conflict(
                f"allocation {self.job.submission_id} ended before the program did: {form['status']}, {_why(form)}",
                fix="work since then may have run without these resources; run it again",
            )


def _why(form: Mapping[str, Any]) -> str | None:
    reason: str | None = form["message"] or form["state_reason"]
    return reason


def is_outside() -> bool:
    """Whether this program runs outside of jobs, so that it needs an allocation for a cluster of its own."""
    from vctl.core.clusters import PRIMARY

    return inside.submission_id() is None or inside.cluster_id() == PRIMARY
