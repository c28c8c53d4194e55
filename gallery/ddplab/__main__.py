"""``python -m ddplab`` is the command ``ddplab``."""

import sys

from .cli import main

sys.exit(main())
