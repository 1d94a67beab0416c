"""Criteria: how much an expert is worth; one file each, the file name is the criterion."""
