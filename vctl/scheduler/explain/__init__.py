"""Why work waits, and what would start it: this folder reads what the scheduler decides, and decides nothing itself.

The problem. A user wants to know why a job does not run, with numbers that are true now, and what to do about it. The
answer has to be that of the scheduler: a second opinion on what fits, or on who is next, is wrong sooner or later.

The idea. A step that refuses returns a value, ``refusal.Refusal``: the rule that decided, its subject, how much was
asked, and how much there is. Placement, growth, feasibility (``placement_reasons``, ``gang_growth``) and the limits of
running jobs (``limits``) return it; nobody else compares these numbers. ``words`` has one table of rules and sentences,
and is asked only where a sentence is shown: most refusals of a round are never read.

    three nodes with 12 CPU free each, a gang of four nodes of 8 CPU
    place(...)                  ->  Refusal(PIECES, "CPU", requested 32, have 24; of 8 CPU, count 4, fit 3)
    words.lack(...)             ->  "needs 4 times 8 CPU, 3 fit"
    words.lack_when_empty(...)  ->  "4 times 8 CPU asked, 3 fit"

Between two rounds a verdict may grow stale. So what can be counted is counted again when it is shown: ``shortage``
counts a request against free capacities, without a search, in the terms of nodes; ``fits`` is None where only a search
can tell. ``nodes`` gives the verdict of each node: infeasible, feasible but not available, or available.

What would help is not deduced but tried. ``trial`` runs the scheduler's own ``decide`` on a changed state, round after
round, as a scheduler would, and takes everything back. ``whatif`` asks whether a job starts after a change,
``whatif_search`` looks for the smallest changes of each kind that do.

Invariants.
- No answer changes the ledger or the queues: each trial leaves them as they were.
- A change that is offered was tried in the state as it is, with everybody in it who may take the same capacity.
- A search ends at its budget, and says so; what was not tried is not called impossible.

The cost. A trial costs rounds: as many searches as there are shapes that a change could help. Work that can have
nothing of what the job needs is left out: in a cluster of whole nodes nobody else counts. Among elastic siblings
everybody counts, and the first round judges each shape of each of them.

What is not done. A verdict is stored as its words, not as its refusal. A refusal has one subject and one number, of the
moment of the round; what is shown names the free amounts of each node now, and whether the verdict still holds depends
on all of the request. So a stored refusal would spare no count. Of more than two changes that help only together none
is found.
"""
