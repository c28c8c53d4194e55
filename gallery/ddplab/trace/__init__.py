"""What a profiler's trace says of a DDP job: buckets, what hid behind computing, and which rank came last."""

from .compare import Lateness, lateness
from .read import Collective, Trace, read_trace
from .steps import Bucket, Step, buckets, steps

__all__ = ["Bucket", "Collective", "Lateness", "Step", "Trace", "buckets", "lateness", "read_trace", "steps"]
