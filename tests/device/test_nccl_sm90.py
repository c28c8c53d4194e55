"""``nccl_sm90.py`` on a library made here: what is kept, what is overwritten, what is refused."""

import lzma
import struct

import pytest
from nccl_sm90 import MAGIC, main

CUBIN, PTX = 2, 1


def entry(kind, architecture, code):
    head = bytearray(64)
    struct.pack_into("<HHIQ", head, 0, kind, 257, len(head), len(code))
    struct.pack_into("<I", head, 28, architecture)
    return bytes(head) + code


def fat(*entries):
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


@pytest.fixture
def library(tmp_path):
    """Two fat binaries, and four bytes that look like the start of one."""
    path = tmp_path / "libnccl.so.2"
    first = fat(entry(CUBIN, 80, b"old!" * 50), entry(CUBIN, 90, b"kept" * 50))
    second = fat(entry(PTX, 120, b"text" * 9))
    path.write_bytes(b"ELF " + MAGIC + b"no header here" + first + b"between" + second + b"end")
    return path


def test_only_the_code_of_other_architectures_is_overwritten(library, tmp_path, capsys):
    assert main([str(library), str(tmp_path / "new" / "cut.xz")]) == 0
    expected = library.read_bytes().replace(b"old!", bytes(4)).replace(b"text", bytes(4))
    assert lzma.decompress((tmp_path / "new" / "cut.xz").read_bytes()) == expected
    said = capsys.readouterr().out
    assert "kept: cubin 90 " in said
    assert "overwritten: PTX 120 0.0 MiB, cubin 80 0.0 MiB" in said


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (lambda data: data, ["--keep", "75"], "no code for architecture 75; there is: PTX 120, cubin 80, cubin 90"),
        (lambda data: b"nothing", [], "no code for architecture 90; there is: no fat binary"),
        (lambda data: data.replace(struct.pack("<I", 64), bytes(4), 1), [], "is not an entry of a fat binary"),
        (lambda data: data[:-20], ["--keep", "120"], "no code for architecture 120"),
        (None, [], "No such file"),
    ],
    ids=["architecture", "no library", "entry", "cut off", "no file"],
)
def test_what_it_cannot_cut_is_refused_in_one_line(change, options, words, library, tmp_path, capsys):
    data = library.read_bytes()
    library.unlink()
    if change:
        library.write_bytes(change(data))
    assert main([str(library), str(tmp_path / "cut"), *options]) == 1
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not (tmp_path / "cut").exists()
