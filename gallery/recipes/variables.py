"""Print what the launcher told this process about its place, as one line of JSON."""

import json
import os
import sys

PREFIXES = (
    "RANK",
    "LOCAL_",
    "WORLD_",
    "GROUP_",
    "ROLE_",
    "MASTER_",
    "TORCHELASTIC_",
    "OMP_",
    "SLURM_",
)

told = {name: os.environ[name] for name in sorted(os.environ) if name.startswith(PREFIXES)}
sys.stdout.write(json.dumps(told) + "\n")  # in one piece: the ranks share the output
