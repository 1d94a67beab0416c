"""Families as data: config.json and tensor names to a MoeLayout; a file a family or recipe."""
