"""See what every attention head is looking at: exact, at any length, at the speed of not looking."""

from clearhead.attention import attention, explain, observe
from clearhead.biases import ALiBi
from clearhead.masks import All, Causal, Documents, Padding, Prefix, Window
from clearhead.observables import Observables, Observation
from clearhead.trace import Trace
from clearhead.watch import watch

__version__ = "0.1.0"
__all__ = [
    "ALiBi",
    "All",
    "Causal",
    "Documents",
    "Observables",
    "Observation",
    "Padding",
    "Prefix",
    "Trace",
    "Window",
    "attention",
    "explain",
    "observe",
    "watch",
]
