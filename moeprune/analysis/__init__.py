"""What the stats say of a model, in pure numpy; one question a module."""
