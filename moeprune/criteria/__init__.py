"""Criteria: how much an expert is worth; one file each, the file name is the criterion.

A criterion defines ``NEEDS`` (fields of the stats), ``OPTIONS`` (names of its keyword arguments)
and ``score(sums, **options) -> (L, E)``, where ``sums`` are pooled over domains as
``core.pooling.pool`` does. Higher is worth more; an expert that saw no token scores 0.
"""
