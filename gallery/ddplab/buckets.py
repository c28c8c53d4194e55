"""The public address of bucket assignment: see :mod:`ddplab.model.buckets`."""

from .model.buckets import *  # noqa: F403
