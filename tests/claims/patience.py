"""Waiting as long as a busy machine needs, and timeouts that come only where a test wants them."""

from functools import partial

from ddplab import launch as launch_within
from ddplab.apparatus.gloo import gloo_group, shorten
from ddplab.apparatus.postmortem import postmortem as postmortem_within
from tools import PATIENCE_S

__all__ = ["launch", "patient_group", "postmortem", "shorten"]

launch = partial(launch_within, timeout_s=PATIENCE_S)
postmortem = partial(postmortem_within, timeout_s=PATIENCE_S)
patient_group = gloo_group
