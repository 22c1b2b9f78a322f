"""Models to look at: the small built-in one, Hugging Face folders, GGUF files."""

from clearhead.models.loading import load
from clearhead.models.model import Model, Part
from clearhead.models.own import OwnModel
from clearhead.models.transformer import Config, Transformer

__all__ = ["Config", "Model", "OwnModel", "Part", "Transformer", "load"]
