"""On PYTHONPATH, Python imports only what a reader's environment has: tests build the book so, without torch."""

import os
import sys

for name in os.environ["NOT_FOR_READERS"].split():
    sys.modules[name] = None  # importing it raises ImportError
