"""Models to look at: the small built-in one, and folders of the same kind."""

from clearhead.models.loading import Model, load
from clearhead.models.transformer import Config, Transformer

__all__ = ["Config", "Model", "Transformer", "load"]
