"""Runs compared question by question: joined, tested, ranked; samples in, figures out. No torch."""
