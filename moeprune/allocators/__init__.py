"""Allocators: from scores to the experts that stay; one file each, the file name is the allocator.

An allocator defines ``OPTIONS`` (names of its keyword arguments) and
``allocate(score_LE, *, mass_DLE, budget, **options) -> keep_LE``.
"""
