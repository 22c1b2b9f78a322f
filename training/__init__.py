"""How the built-in model was made: `python -m training` (see README.md in this folder)."""
