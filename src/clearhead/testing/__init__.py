"""How right is right: the one tolerance rule that the tests and the checker share."""

from clearhead.testing.tolerance import Comparison, assert_within_tolerance, compare, math_path

__all__ = ["Comparison", "assert_within_tolerance", "compare", "math_path"]
