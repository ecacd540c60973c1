"""A decision for a large gang costs what the gang costs, not what the nodes do. Ratios only."""

from __future__ import annotations

import pytest

from tests.benchmarks.decisions import POLICIES, decisions
from tests.specification import spec

pytestmark = spec("18.budgets", "6.gang")


@pytest.mark.parametrize("policy", POLICIES)
def test_ten_times_the_nodes_cost_no_more(policy: str) -> None:
    small, large = (
        min(milliseconds for milliseconds, _ in decisions(nodes, policy, 60)) for nodes in (1_000, 10_000)
    )
    assert large < 2 * small
