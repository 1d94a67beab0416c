"""Types shared by every stage: numpy only, no torch."""
