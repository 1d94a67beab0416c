"""Public data sets as published on the Hub, a file each, and how they are asked.

A layout defines ``convert(row, number)``, which makes a row of a task's questions of a published
row; ``PROTOCOL``, what its task file states; and ``QUESTIONS`` and ``SHOTS``, where the Hub has
them (``""``: nowhere; with a ``{PART}``: in parts, one of which is to be named).
"""
