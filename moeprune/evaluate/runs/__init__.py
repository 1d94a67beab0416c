"""A file a format of results: ``holds(path) -> bool`` and ``read(path) -> Run``.

``holds`` looks at names only and says whether ``path`` (a folder or a file) is one result of the
format; ``read`` reads it, or says in a RunError why it cannot.
"""
