"""Print the variables that place this process in the job, as one line of JSON."""

import json
import os
import sys

PREFIXES = ("RANK", "LOCAL_", "WORLD_", "GROUP_", "ROLE_", "MASTER_")
PREFIXES += ("TORCHELASTIC_", "OMP_", "SLURM_")

place = {name: os.environ[name] for name in sorted(os.environ) if name.startswith(PREFIXES)}
sys.stdout.write(json.dumps(place) + "\n")  # in one write: the ranks share the output
