"""Cut NCCL's library down to one GPU architecture, so that it can be carried to a machine without a network.

    pip download --no-deps nvidia-nccl-cu13==2.30.7      a wheel is a zip: nvidia/nccl/lib/libnccl.so.2 is in it
    strip --strip-debug libnccl.so.2
    python3 tests/device/nccl_sm90.py libnccl.so.2 .nccl/libnccl.so.2.xz

The library holds its kernels once for each architecture, in fat binaries: a header of 16 bytes (magic number, version,
own length, length of what follows), then entries, each with a header (kind, version, own length, length of the code,
and at byte 28 the architecture) and its code. The code of all other architectures is overwritten with zeros, which
compress to nothing; no address changes. The layout is not documented: seen in NCCL 2.28.9 and 2.30.7. The result was
loaded; its kernels were not run.
"""

from __future__ import annotations

import argparse
import lzma
import struct
import sys
from collections import Counter
from pathlib import Path

MAGIC = struct.pack("<I", 0xBA55ED50)
KINDS = {1: "PTX", 2: "cubin"}


def cut(library: bytearray, keep: int) -> tuple[Counter[str], Counter[str]]:
    """Overwrite the code of other architectures in place; return the bytes kept and overwritten, by kind and number.

    Args:
        library: the whole file.
        keep: the architecture, such as 90 for the H100 and the H200.

    Raises:
        ValueError: there is no code for that architecture, or an entry is not as described above.
    """
    kept, gone = Counter[str](), Counter[str]()
    at = library.find(MAGIC)
    while at >= 0:
        _, version, header, length = struct.unpack_from("<IHHQ", library, at)
        here, end = at + header, at + header + length
        if (version, header) != (1, 16) or end > len(library):  # these four bytes happen to stand here
            at = library.find(MAGIC, at + 4)
            continue
        while here < end:
            kind, _, header, size = struct.unpack_from("<HHIQ", library, here)
            (architecture,) = struct.unpack_from("<I", library, here + 28)
            code = here + header
            if not (64 <= header <= 4096 and code + size <= end):
                raise ValueError(f"byte {here} is not an entry of a fat binary as NCCL 2.28 and 2.30 have them")
            name = f"{KINDS.get(kind, kind)} {architecture}"
            (kept if architecture == keep else gone)[name] += size
            if architecture != keep:
                library[code : code + size] = bytes(size)
            here = code + size
        at = library.find(MAGIC, end)
    if not kept:
        raise ValueError(f"no code for architecture {keep}; there is: {', '.join(sorted(gone)) or 'no fat binary'}")
    return kept, gone


def main(arguments: list[str] | None = None) -> int:
    """Cut one file, and compress it if its new name ends in ``.xz``."""
    parser = argparse.ArgumentParser(prog="nccl_sm90.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("library", type=Path, help="libnccl.so.2")
    parser.add_argument("into", type=Path, help="the new file; .xz: compressed, which takes minutes")
    parser.add_argument("--keep", type=int, default=90, metavar="N", help="the architecture that stays (90)")
    options = parser.parse_args(arguments)
    try:
        library = bytearray(options.library.read_bytes())
        kept, gone = cut(library, options.keep)
        options.into.parent.mkdir(parents=True, exist_ok=True)
        packed = lzma.compress(library, preset=9 | lzma.PRESET_EXTREME) if options.into.suffix == ".xz" else library
        options.into.write_bytes(packed)
    except (OSError, ValueError, struct.error) as problem:
        print(f"nccl_sm90.py: {options.library}: {problem}", file=sys.stderr)
        return 1
    for what, found in (("kept", kept), ("overwritten", gone)):
        print(f"{what}:", ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in sorted(found.items())) or "none")
    print(f"{options.into}: {len(packed) / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
