"""The lesson: attention from a loop to the kernel, with real numbers at every step.

One source, its pages (`pages`), shown in the terminal, in the browser (`page.page`) and as a notebook (`notebook.notebook`).

>>> from clearhead.lesson import Settings, pages
>>> [page.key for page in pages(Settings())][:5]
['0', '1', '2', '3', '3a']
"""

from clearhead.lesson.book import Book, pages
from clearhead.lesson.settings import Settings

__all__ = ["Book", "Settings", "pages"]
