"""Criteria: how much an expert is worth; one file each, the file name is the criterion.

A criterion defines ``NEEDS`` (fields of the stats), ``OPTIONS`` (names of its keyword arguments)
and ``score(sums, **options) -> (L, E)``, where ``sums`` are pooled over domains as
``core.pooling.pool`` does. Higher is worth more; an expert that saw no token scores 0 (`mass`:
what probability the router gave it).

Means over routed tokens (`reap`, `reap-prob`, `ean` = `man`, `msan`) say how much an expert adds
when it is used, sums per token of text (`reap-sum`, `ean-sum`, `gate`, `frequency`) how much in
all. `fisher`, `fisher-cf` and `abs-cf` say what the loss makes of its absence, per target token;
they need stats of `calibrate --loss-aware`. Where a family scales the experts' inputs (Llama 4),
the norm is of what the expert really adds, with the score inside: there `ean` equals `reap`, and
`reap-prob` weighs by the router twice.
"""
