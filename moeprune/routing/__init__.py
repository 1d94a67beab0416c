"""Routing of a live model: which experts its routers may choose."""
