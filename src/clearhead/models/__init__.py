"""Models to look at: the small built-in one, Hugging Face folders, GGUF files."""

from clearhead.models.loading import load
from clearhead.models.model import Model
from clearhead.models.own import OwnModel
from clearhead.models.transformer import Config, Transformer

__all__ = ["Config", "Model", "OwnModel", "Transformer", "load"]
