"""Make a virtual environment on top of a Python that has a torch of its own: `make test TORCH=python3`.

Run it with that Python: ``python3 tests/own_torch.py FOLDER``. The environment sees all packages of that Python, and
pip adds only what is missing: FOLDER/constraints.txt holds this torch, and of constraints.txt what is not there yet.
"""

import sys
import venv
from importlib import metadata
from pathlib import Path


def main(folder: Path) -> None:
    """Make the environment, or end with one line that says why not."""
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        sys.exit(f"TORCH: {sys.executable} has no torch. Give the Python that has one, or leave TORCH out.")
    venv.create(folder, with_pip=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    there = [path for path in sys.path[1:] if path.endswith("-packages")]  # of Debian also dist-packages
    (packages / "own_torch.pth").write_text("\n".join(there) + "\n")
    pins = (Path(__file__).parents[1] / "constraints.txt").read_text().splitlines()
    missing = [pin for pin in pins if not _installed(pin.partition("==")[0])]
    (folder / "constraints.txt").write_text("\n".join([*missing, f"torch=={torch}", ""]))


def _installed(name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


if __name__ == "__main__":
    main(Path(sys.argv[1]))
