"""Attention written wrong on purpose, each with the diagnosis it must get, and attention written right in many styles."""
