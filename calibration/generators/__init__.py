"""What ``calibration/generate.py`` writes: exercises, their layouts, and the documents."""
