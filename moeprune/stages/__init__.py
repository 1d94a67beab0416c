"""Stages: one function a command, the order of steps and nothing else."""
