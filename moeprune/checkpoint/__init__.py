"""Checkpoints as byte ranges: headers, edits, a streaming writer. Never torch."""
