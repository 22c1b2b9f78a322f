"""The pages of the lesson, each a function that computes its numbers."""
