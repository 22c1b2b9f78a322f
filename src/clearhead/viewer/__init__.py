"""Showing a run of a model: what is shown (`View`), as one page and as one picture; a question about documents (`ask`)."""

from clearhead.viewer.asking import Asked, Reader, ask
from clearhead.viewer.data import Shown
from clearhead.viewer.picture import picture
from clearhead.viewer.single import page, single
from clearhead.viewer.view import View, look

__all__ = ["Asked", "Reader", "Shown", "View", "ask", "look", "page", "picture", "single"]
