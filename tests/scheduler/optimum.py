"""The shortest possible makespan of an instance, by OR-tools CP-SAT: an exact solver that shares nothing with vctl."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from ortools.sat.python import cp_model

from tests.scheduler.makespan import Instance

EFFORT = 60.0
"""Deterministic seconds of the solver for one instance: the same on every machine."""


@dataclass(frozen=True)
class Solved:
    """The best makespan found and the bound that no schedule beats; proved optimal when they are equal."""

    best: int
    bound: int


def solve(given: Instance, effort: float = EFFORT) -> Solved:
    """Choose a start for every job and a node for every bundle; each node holds what lies on it at any time."""
    model = cp_model.CpModel()
    profile = sum(job.minutes for job in given.jobs)
    makespan = model.new_int_var(0, profile, "makespan")
    lying: list[list[tuple[cp_model.IntervalVar, tuple[int, ...]]]] = [[] for _ in given.nodes]
    for j, job in enumerate(given.jobs):
        start = model.new_int_var(0, profile, f"start{j}")
        model.add(start + job.minutes <= makespan)
        chosen = []
        for b, size in enumerate(job.bundles):
            here = [model.new_bool_var(f"job{j}bundle{b}node{n}") for n in range(len(given.nodes))]
            model.add_exactly_one(here)
            chosen.append(here)
            for n, literal in enumerate(here):
                end = start + job.minutes
                interval = model.new_optional_interval_var(start, job.minutes, end, literal, f"i{j}.{b}.{n}")
                lying[n].append((interval, size))
        if job.distinct:
            for one, other in combinations(chosen, 2):
                for n in range(len(given.nodes)):
                    model.add_at_most_one([one[n], other[n]])
    for node, intervals in zip(given.nodes, lying, strict=True):
        for r, total in enumerate(node):
            demands = [(interval, size[r]) for interval, size in intervals if size[r]]
            model.add_cumulative([i for i, _ in demands], [d for _, d in demands], total)
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    solver.parameters.max_deterministic_time = effort
    status = solver.solve(model)
    assert status in (cp_model.OPTIMAL, cp_model.FEASIBLE), solver.status_name(status)
    return Solved(round(solver.objective_value), round(solver.best_objective_bound))
