"""The mathematics in the clearest PyTorch. Slow, quadratic memory, float64-able: this defines what is right."""

from clearhead.reference.attention import Pattern, attention, pattern, weighted_sum
from clearhead.reference.maps import pooled_map
from clearhead.reference.observables import observe

__all__ = ["Pattern", "attention", "observe", "pattern", "pooled_map", "weighted_sum"]
