"""Kinds of tasks, one file each: what the model is given, and how its answer is read.

A kind defines ``WRITES`` (the model writes, else it scores), ``requests(task, question, *, encoder,
tokenizer, seeds)`` and ``sample(task, request, answer)``, where the answer is
:class:`moeprune.evaluate.scoring.Scores` or :class:`moeprune.evaluate.written.Answer`. One that
scores also has ``close(request, scores)``: whether rounding could decide it otherwise.
"""
