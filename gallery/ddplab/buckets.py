"""The public address of bucket assignment: see :mod:`ddplab.model.assignment`."""

from .model.assignment import *  # noqa: F403
