"""What a head does: role scores against null baselines, on a text or calibrated on repeated random tokens.

A role is a number between 0 and 1 (how much weight follows a rule) and the number a head that attends uniformly to
everything it may see would get on the same tokens. A head is labelled when its score is at least `THRESHOLD` and leaves at
most half of what uniform attention misses: score ≥ null + (1 − null) / 2, so that no label comes from a short text in which
everything is near.
"""

from clearhead.roles.calibration import Calibrated, calibrate
from clearhead.roles.lookups import Retrieval, looked_up, retrieval
from clearhead.roles.scores import ROLES, RoleScore, label, roles

__all__ = ["ROLES", "Calibrated", "Retrieval", "RoleScore", "calibrate", "label", "looked_up", "retrieval", "roles"]
