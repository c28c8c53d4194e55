"""The lab kit of The DDP Handbook: what its scripts share, and nothing else.

This file only re-exports, so that a script which imports one name depends on one module
(editions re-execute exactly the scripts whose imports changed).
"""

from .runtime.evidence import record as record
from .runtime.launcher import LaunchError as LaunchError
from .runtime.launcher import launch as launch
from .runtime.rank import device as device
