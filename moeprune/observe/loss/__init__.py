"""The loss of texts, taken back through the layers to what their experts gave."""
