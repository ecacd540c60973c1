"""The caller of a command: a process of a job, as its environment says, or one outside of all jobs. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from vctl.core.values import value

JOB_ID, SUBMISSION_ID = "VCTL_JOB_ID", "VCTL_SUBMISSION_ID"


@value(frozen=True, slots=True)
class Caller:
    """A caller that is a process of a job: the number and the submission id of that job."""

    job_id: int
    submission_id: str

    @classmethod
    def of(
        cls, values: Mapping[str, str], job_id: str = JOB_ID, submission_id: str = SUBMISSION_ID
    ) -> Caller | None:
        """The job that an environment (or the headers of a request) names; None outside of jobs."""
        number, name = values.get(job_id, ""), values.get(submission_id, "")
        return cls(int(number), name) if name and number.isascii() and number.isdigit() else None
