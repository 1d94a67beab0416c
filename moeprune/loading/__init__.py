"""What transformers needs to load the experts that moeprune writes.

``import moeprune`` registers it; a folder's own ``modeling_moeprune.py`` holds the same text.
"""
