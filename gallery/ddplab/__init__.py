"""The lab kit of The DDP Handbook: what its scripts share, and nothing else.

This file only re-exports, so that a script which imports one name depends on one module
(editions re-execute exactly the scripts whose imports changed).
"""

from .evidence import record as record
from .launcher import LaunchError as LaunchError
from .launcher import launch as launch
from .rank import device as device
