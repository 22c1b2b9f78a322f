"""What a model's heads do over a whole corpus: streamed, shared among processes, resumable, the same bytes each time.

from clearhead.models import load
from clearhead.survey import Corpus, survey

found = survey(load("builtin"), Corpus(["texts/"]), "found")
found.table("heads")      # roles, with standard errors over documents
"""

from clearhead.survey.corpus import Corpus
from clearhead.survey.options import Options
from clearhead.survey.progress import Progress
from clearhead.survey.results import Survey, compare, load
from clearhead.survey.running import survey

__all__ = ["Corpus", "Options", "Progress", "Survey", "compare", "load", "survey"]
