"""Edits of waiting jobs: each field reaches the job that starts, and what no submit may ask for changes nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.daemon.conftest import SLEEP, Life
from tests.marks import spec
from vctl.core.nodes import CPU
from vctl.errors import BadSpec, Conflict, Infeasible, NotFound
from vctl.ops import clusters, job_edits, logs, submitting
from vctl.spec.cluster_change import ClusterChange
from vctl.spec.job_request import JobRequest
from vctl.spec.options import parse_array
from vctl.store import jobs as table
