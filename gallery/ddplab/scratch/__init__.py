"""DDP from scratch: the class ``DDP``, and the stages in which the chapter builds it.

Each stage is a file with the whole class as it stands there, and the chapter shows it as a
diff from the one before: verify, broadcast, naive, accumulate, flat, overlap, buffers, unused,
complete.
"""

from .complete import DDP as DDP
from .complete import Bucket as Bucket
