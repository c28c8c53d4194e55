"""What a watched folder says of kills and power cuts: compared with real kills, and with what was flushed."""

import json
import os
import subprocess
import sys

import pytest

from ddplab.grading.disk import DiskWatch, Op, file_limit, read_files, write_files
from tools import PATIENCE_S

OLD, NEW = b"old" * 5000, b"new" * 6000


def save(folder):
    """Save a file in two pieces by way of a draft; then remove the old one."""
    with open(folder / "draft", "wb") as file:
        file.write(NEW[:9000])
        file.write(NEW[9000:])
        file.flush()
        os.fsync(file.fileno())
    os.replace(folder / "draft", folder / "2")
    names = os.open(folder, os.O_RDONLY)
    os.fsync(names)
    os.close(names)
    (folder / "1").unlink()


@pytest.fixture
def folder(tmp_path):
    write_files({"1": OLD}, tmp_path / "files")
    return tmp_path / "files"


def test_operations_are_seen_in_order(folder):
    with DiskWatch(folder) as watch:
        save(folder)
    kinds = [Op("create", "draft"), Op("write", "draft"), Op("fsync", "draft"), Op("rename", "draft", "2")]
    assert list(dict.fromkeys(watch.ops)) == [*kinds, Op("fsync", ""), Op("remove", "1")]
    assert watch.asked == [Op("open", "draft"), Op("fsync", "draft"), Op("rename", "draft", "2"), Op("fsync", "")]
    assert watch.end == read_files(folder) == {"2": NEW}
    assert (watch.outside, watch.program, watch.bare_write) == ("", "", False)


def test_a_power_cut_loses_what_was_not_flushed(folder):
    with DiskWatch(folder) as watch:
        save(folder)

    def after(how, kind, name=""):
        done = watch.ops.index(next(op for op in watch.ops if op.kind == kind and op.name == name)) + 1
        return next(moment.files for moment in watch.moments if (moment.done, moment.how) == (done, how))

    assert after("bytes", "write", "draft") == {"1": OLD, "draft": b""}
    assert after("bytes", "rename", "draft") == {"1": OLD, "2": NEW}
    assert after("names", "rename", "draft") == {"1": OLD}, "nobody has flushed the folder"
    assert after("names", "fsync") == {"1": OLD, "2": NEW}
    assert after("names", "remove", "1") == {"1": OLD, "2": NEW}, "the removal may be lost"
    assert after("order", "remove", "1") == {"2": NEW}


KILLS = """
import json, os, signal, sys
from pathlib import Path
from ddplab.grading.disk import read_files, write_files
sys.path[:0] = sys.argv[1], os.path.dirname(sys.argv[1])
from test_disk import OLD, save

def killed_at(number, folder):
    left = iter(range(number))
    def count(frame, event, function):
        if event == "c_call" and next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.setprofile(count)
    save(folder)
    os._exit(0)

folder, found, status, number = Path(sys.argv[2]), [], 1, 0
while status:
    write_files({"1": OLD}, folder)
    child = os.fork()
    if not child:
        killed_at(number, folder)
    status, number = os.waitpid(child, 0)[1], number + 1
    found.append({name: content.decode() for name, content in read_files(folder).items()})
print(json.dumps(found))
"""


def test_real_kills_leave_what_was_seen(folder, tmp_path):
    """A process is killed at its first call of a C function, at its second one, and so on."""
    with DiskWatch(folder) as watch:
        save(folder)
    command = [sys.executable, "-c", KILLS, os.path.dirname(__file__), str(tmp_path / "killed")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S)
    found = [{name: content.encode() for name, content in files.items()} for files in json.loads(done.stdout)]
    seen = [moment.files for moment in watch.moments if moment.how == "kill"]
    assert all(files in seen for files in found)
    assert all(files in found for files in seen)


@pytest.mark.parametrize("number", range(3))
def test_the_operation_that_is_named_fails_once(folder, number):
    with DiskWatch(folder, fail_at=number) as watch, pytest.raises(OSError, match="Input/output error"):
        save(folder)
    assert len(watch.asked) == number + 1
    assert watch.end["1"] == OLD


def test_a_full_disk_takes_what_fits(folder):
    with file_limit(9001), pytest.raises(OSError, match="File too large"):
        save(folder)
    assert len((folder / "draft").read_bytes()) == 9001
    save(folder)
    assert read_files(folder) == {"2": NEW}


def test_other_places_and_programs_are_named(folder, tmp_path):
    with DiskWatch(folder) as watch:
        (tmp_path / "draft").write_bytes(NEW)
        with pytest.raises(OSError, match="cross-device"):
            os.replace(tmp_path / "draft", folder / "2")
        os.system("true")
    assert watch.outside == str(tmp_path / "draft")
    assert watch.program == "os.system"
