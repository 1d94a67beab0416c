"""Paired statistics on the same questions: numbers in, numbers out, numpy and scipy only."""
