"""The cluster of the tests, by hand: `make cluster`. It lasts until Ctrl-C."""

import contextlib
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ddplab.apparatus.machines import PATH, NamespaceError, Nodes
from slurm import TOOLS, Slurm

RECIPES = Path(__file__).parents[2] / "gallery" / "recipes"


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what Ctrl-C does
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(KeyboardInterrupt))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ddp-cluster-")))
        try:
            nodes = stack.enter_context(Nodes(4, ["login"]))
        except NamespaceError as reason:
            sys.exit(f"make cluster: {reason}")
        env = {"PATH": PATH, "OMP_NUM_THREADS": "1"}
        if nodes[4].by_root and all(shutil.which(tool, path=PATH) for tool in TOOLS):
            (folder / "slurm").mkdir()
            env |= stack.enter_context(Slurm(nodes[4], nodes[:4], folder / "slurm")).env
        for node in nodes:
            _command(folder / node.name, node.enter([]), env)
        _command(folder / "switch", nodes.switch, env)
        work = folder / "work"
        shutil.copytree(RECIPES, work)
        print(f"{folder.name}: node0 … node3 and login; Ctrl-C removes them.\n\n  cd {work}\n")
        print("  ../node0 ip address             a command on a node; without one, a shell")
        print("  ../switch ip link set node1 down  pull a cable; `up` puts it back")
        if "SLURM_CONF" in env:
            print("  ../login sbatch train.sbatch --steps 100\n  ../login squeue; cat slurm-*.out")
        else:
            print(f"\nWithout Slurm: it needs root and the packages {' '.join(sorted(set(TOOLS.values())))}.")
        sys.stdout.flush()
        signal.pause()


def _command(path: Path, enter: Sequence[str], env: dict[str, str]) -> None:
    """Write a program that runs its arguments somewhere else."""
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
    here = f"--chdir={Path.cwd()}"
    where = " ".join('--chdir="$PWD"' if word == here else shlex.quote(word) for word in enter)
    path.write_text(f'#!/bin/sh\ntest $# -gt 0 || set -- bash\nexport {variables}\nexec {where} "$@"\n')
    path.chmod(0o755)


if __name__ == "__main__":
    main()
