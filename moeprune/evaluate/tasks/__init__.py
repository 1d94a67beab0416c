"""Task files: read, and written out as the texts that a model is given."""
