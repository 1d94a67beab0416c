"""Allocators: from scores to the experts that stay; one file each, the file name is the allocator.

An allocator defines ``OPTIONS`` (names of its keyword arguments) and
``allocate(score_LE, *, worth_DLE, budget, **options) -> Outcome``. ``score_LE`` is the criterion
over all domains, ``worth_DLE`` the same criterion of each domain, rows normalised to 1. It may
define ``QUICK``, options under which plans of halves of the text are made to measure stability.
"""
