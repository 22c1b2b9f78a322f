"""Showing a run of a model: what is shown (`View`), as one page and as one picture."""

from clearhead.viewer.page import page
from clearhead.viewer.picture import picture
from clearhead.viewer.view import View, look

__all__ = ["View", "look", "page", "picture"]
