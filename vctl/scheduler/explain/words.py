"""Puts refusals into words: for what is free now, and for a cluster in which everything is free."""

from __future__ import annotations

from vctl.core.limits import EACH, RUNNING_JOBS, USER, Limit
from vctl.core.resources import GPU
from vctl.core.wording import amount_text, amounts_text, cluster_text, counted, number_text, timestamp
from vctl.scheduler.explain import refusal as rules
from vctl.scheduler.explain.refusal import Refusal
from vctl.scheduler.limits import OF_USER

LACK = {
    rules.NO_NODE: "no node takes work now",
    rules.NO_MATCH: "needs a node with {selector}, 0 nodes match",
    rules.ALL_ON_ONE: "needs {of} on one node, no node has all of it free at once",
    rules.ON_ONE: "needs {requested} on one node{policy}, the most free on one node is {have}",
    rules.ENTRY_ON_ONE: "the entrypoint needs {requested} on one node, the most free on one node is {have}",
    rules.ENTRY_IN_PIECE: "the entrypoint needs {of} in one virtual node, the largest has {have}",
    rules.ENTRY_ON_WHOLE: "the entrypoint does not fit on any of the {whole}",
    rules.ENTRY_IN_MAXIMUM: "the entrypoint needs {requested}, flexible_resource_max allows {have}",
    rules.MINIMUM: "the flexible minimum needs {requested}, {have} can be had",
    rules.IN_TOTAL: "needs {requested} in total, {have} free",
    rules.WHOLE_NODES: "needs {whole}, {fit} untouched",
    rules.DISTINCT: "needs {count} distinct nodes{policy}, have {fit}",
    rules.DISTINCT_ABLE: "needs {count} distinct nodes{policy}, have {fit}",
    rules.DISTINCT_PIECES: "needs {count} distinct nodes with {of} free each, have {fit}",
    rules.PIECES: "needs {count} times {of}, {fit} fit",
    rules.TOGETHER: "does not fit as a whole: {fit} of {fixed} fit together ({of}{and_whole} asked for, {free} free, in"
    " pieces)",
    rules.WITHIN_BUDGET: "no placement found within the search budget after {count} steps ({of}{and_whole} asked for,"
    " {free} free)",
    rules.NO_GROWTH: "{cluster} cannot grow",
    rules.GROWTH_LIMITS: "needs {requested} in total, {number} can be had within the limits of the clusters that would"
    " grow",
    rules.GROWN_IN_TOTAL: "needs {requested} in total, {number} can be had with growth",
    rules.GROWN_ON_ONE: "needs {requested} on one node, {number} can be had with growth",
}
"""Rule -> what there is too little of now."""
LACK_WHEN_EMPTY = {
    rules.NO_NODE: "it has no node in service",
    rules.NO_MATCH: "a node with {selector} asked, none exists",
    rules.ALL_ON_ONE: "{of} asked on one node, no node has all of it",
    rules.ON_ONE: "{requested} asked on one node{policy}, the largest node has {number}",
    rules.ENTRY_ON_ONE: "{requested} asked on one node, the largest node has {number} (for the command)",
    rules.MINIMUM: "{requested} asked as the flexible minimum, {number} can be had",
    rules.IN_TOTAL: "{requested} asked, {number} exist",
    rules.WHOLE_NODES: "{whole} asked, {fit} exist",
    rules.DISTINCT: "{count} distinct nodes{policy} asked, {fit} exist",
    rules.DISTINCT_ABLE: "{count} distinct nodes{policy} asked, {fit} could hold a part of it",
    rules.DISTINCT_PIECES: "{count} distinct nodes with {of} each asked, {fit} exist",
    rules.PIECES: "{count} times {of} asked, {fit} fit",
    rules.TOGETHER: "only {fit} of {fixed} fit together ({of}{and_whole} asked, {free} exist, in pieces)",
    rules.GROWTH_LIMITS: "{requested} asked, the limits of the clusters that would grow allow {number}",
}
"""Rule -> what was asked, and how much exists, where it differs from ``LACK``."""


def lack(refusal: Refusal) -> str:
    """What there is too little of now."""
    return LACK[refusal.rule].format_map(_values(refusal))


def lack_when_empty(refusal: Refusal) -> str:
    """What there is too little of even where everything is free."""
    text = LACK_WHEN_EMPTY.get(refusal.rule) or LACK[refusal.rule]
    return text.format_map(_values(refusal))


def _values(refusal: Refusal) -> dict[str, object]:
    whole = " and ".join(
        f"{counted(number, 'whole node')} of template {template}"
        for template, number in sorted(refusal.whole.items())
    )
    return {
        "requested": amount_text(refusal.subject, refusal.requested),
        "have": amount_text(refusal.subject, refusal.have),
        "number": number_text(refusal.subject, refusal.have),
        "of": amounts_text(refusal.of),
        "free": amounts_text(refusal.free),
        "whole": whole,
        "and_whole": f" and {whole}" if whole else "",
        "count": refusal.count,
        "fixed": counted(refusal.count, "fixed node"),
        "fit": refusal.fit,
        "selector": ", ".join(f"{condition.key}: {condition}" for condition in refusal.selector),
        "policy": f" ({refusal.detail})" if refusal.detail else "",
        "cluster": cluster_text(refusal.detail),
    }


# ---- limits of running jobs ----


def verdict_on_limit(refusal: Refusal, cluster_id: str, user: str) -> str:
    """A reached limit as a round tells it: without the number of running jobs, which changes."""
    if refusal.limit is not None:
        until = "" if refusal.until_ns is None else f"; it begins anew at {timestamp(refusal.until_ns)}"
        return f"{_of_limit(refusal.limit, user)}{until}"
    whose = f" of {user}" if refusal.subject == OF_USER else ""
    return f"at most {counted(refusal.have, 'job')}{whose} may run in {cluster_text(cluster_id)} at a time"


def limit_reached(refusal: Refusal, cluster_id: str, user: str) -> str:
    """A reached limit with the number of jobs that run now."""
    if refusal.limit is not None:
        return _limit_with_numbers(refusal, refusal.limit, user)
    run, each = refusal.requested - 1, refusal.subject == OF_USER
    whose, of = (f" of {user}", " of each user") if each else ("", "")
    runs = f"{counted(run, 'job')}{whose} run{'s' if run == 1 else ''} in {cluster_text(cluster_id)}"
    return f"{runs}, where at most {refusal.have}{of} may run at a time"


def _of_limit(limit: Limit, user: str) -> str:
    """A limit of a user or a cluster, and who set it."""
    if limit.period:
        who = user if limit.subject == USER else f"cluster {cluster_text(limit.name)}"
        most = f"{who} may use {number_text(GPU, limit.amount)} GPU hours a {limit.period}"
        return f"{most} (a limit{' of each user' if limit.name == EACH else ''} set by {limit.author})"
    whose = f"jobs of {user}" if limit.subject == USER else f"jobs in {cluster_text(limit.name)}"
    if limit.resource == RUNNING_JOBS:
        most = f"at most {counted(limit.amount, 'job')}{whose.removeprefix('jobs')} may run at a time"
    else:
        most = f"{whose} may hold at most {amount_text(limit.resource, limit.amount)} at a time"
    return f"{most} (a limit{' of each user' if limit.name == EACH else ''} set by {limit.author})"


def _limit_with_numbers(refusal: Refusal, limit: Limit, user: str) -> str:
    """A limit of a user or a cluster with what is used of it now."""
    asked = refusal.of[limit.resource]
    used, most = refusal.requested - asked, _of_limit(limit, user)
    if refusal.until_ns is not None:
        return f"{number_text(GPU, used)} GPU hours used; {most}; it begins anew at {timestamp(refusal.until_ns)}"
    if limit.resource == RUNNING_JOBS:
        return f"{counted(used, 'job')} run{'s' if used == 1 else ''}; {most}"
    if asked > limit.amount:
        return f"it asks for {amount_text(limit.resource, asked)}; {most}"
    text = amount_text(limit.resource, asked)
    return f"{amount_text(limit.resource, used)} held, and it asks for {text}; {most}"


def limit_beside(refusal: Refusal) -> str:
    """A limit that those reach for whose end a job waits."""
    of = " of each user" if refusal.subject == OF_USER else ""
    return f"at most {refusal.have}{of} may run at a time"
