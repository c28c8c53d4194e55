"""The public address of the cost model: see :mod:`ddplab.model.cost`."""

from .model.cost import *  # noqa: F403
