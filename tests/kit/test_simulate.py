"""`ddplab simulate`: what it prints is what the cost model says, and what cannot be used is named in one line."""

import json
import re
import subprocess
import sys

import pytest
from refusal import refused

from ddplab import cli
from ddplab.buckets import DEFAULT_CAP_BYTES, DEFAULT_FIRST_CAP_BYTES, MIB
from ddplab.costmodel import Link, bucketed, equal_layers, simulate_step
from tools import PATIENCE_S


def run(capsys, *arguments):
    assert cli.main(["simulate", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def answer(capsys, *arguments):
    return json.loads(run(capsys, "--json", *arguments))


@pytest.fixture
def ready(tmp_path):
    path = tmp_path / "ready.json"

    def write(content):
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return path

    return write


MODEL = ["--layers", 6, "--mib-per-layer", 2, "--forward-ms", 40, "--backward-ms", 60]
LINK = ["--ranks", 2, "--latency-us", 1000, "--gbit-per-s", 1.6, "--algorithm", "link"]


def test_the_numbers_are_those_of_the_model(capsys):
    found = answer(capsys, *MODEL, *LINK, "--bucket-cap-mb", 2, 4, 100, "--optimizer-ms", 5, "--accumulation", 3)
    gradients = equal_layers(6, 2 * MIB, 0.060)
    link = Link(1e-3, 200e6, 2, "link")
    for plan, cap in zip(found["plans"], (2, 4, 100), strict=True):
        buckets = bucketed(gradients, cap * MIB)
        step = simulate_step(0.040, gradients, buckets, link, optimizer_s=0.005, accumulation=3)
        assert plan["bucket_cap_mb"] == cap
        assert plan["buckets"] == len(buckets) == len(plan["timeline"])
        for name in ("step", "communication", "exposed", "overlapped"):
            assert plan[f"{name}_ms"] == pytest.approx(getattr(step, f"{name}_s") * 1e3)
        for shown, transfer in zip(plan["timeline"], step.timeline, strict=True):
            assert shown["bytes"] == transfer.nbytes
            assert [shown["start_ms"], shown["end_ms"]] == pytest.approx([transfer.start_s * 1e3, transfer.end_s * 1e3])
    assert found["lower_bound_ms"] == pytest.approx(step.lower_bound_s * 1e3)
    assert found["no_communication_ms"] == pytest.approx(305)
    assert found["best"] == min(range(3), key=lambda i: found["plans"][i]["step_ms"])
    assert (found["gradients"], found["bytes"]) == (6, 12 * MIB)


def test_without_a_cap_the_buckets_are_those_of_ddp(capsys):
    (plan,) = answer(capsys, "--layers", 30, "--mib-per-layer", 3)["plans"]
    expected = bucketed(equal_layers(30, 3 * MIB, 1.0), DEFAULT_CAP_BYTES, DEFAULT_FIRST_CAP_BYTES)
    assert [transfer["bytes"] for transfer in plan["timeline"]] == [3 * MIB * len(bucket) for bucket in expected]
    assert (plan["bucket_cap_mb"], plan["first_bucket_cap_mb"]) == (25, 1)


def test_no_overlap_and_total_mib(capsys):
    serial = answer(capsys, *LINK, "--layers", 6, "--total-mib", 12, "--backward-ms", 60, "--no-overlap")
    (plan,) = serial["plans"]
    assert plan["step_ms"] == pytest.approx(serial["no_communication_ms"] + plan["communication_ms"])
    assert (plan["overlapped_ms"], serial["bytes"]) == (pytest.approx(0), 12 * MIB)
    assert plan["timeline"][0]["start_ms"] == pytest.approx(90)


def test_one_rank_and_many(capsys):
    assert answer(capsys, "--ranks", 1)["plans"][0]["step_ms"] == pytest.approx(90)
    assert answer(capsys, "--ranks", 16384, "--algorithm", "tree")["plans"][0]["step_ms"] > 90


def test_a_file_of_gradients(capsys, ready):
    path = ready([[30, 2000], [10.5, 1000], [10.5, 4000.0]])  # in any order
    found = answer(capsys, "--gradients", path, "--forward-ms", 0, "--bucket-cap-mb", 0.001, *LINK)
    assert [(t["bytes"], t["ready_ms"]) for t in found["plans"][0]["timeline"]] == [
        (5000, pytest.approx(10.5)),  # 1000 bytes do not reach 0.001 MiB = 1049 bytes
        (2000, pytest.approx(30)),
    ]
    assert found["backward_ms"] == pytest.approx(30)
    assert answer(capsys, "--gradients", path, "--backward-ms", 45)["backward_ms"] == pytest.approx(45)
    assert answer(capsys, "--gradients", path, "--backward-ms", 30)["backward_ms"] == pytest.approx(30)


def test_the_table_and_the_timeline(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "72")  # 60 characters of time
    link = ["--ranks", 2, "--latency-us", 0, "--gbit-per-s", 2 * MIB * 8 / 1e7, "--algorithm", "link"]
    text = run(capsys, *MODEL, *link, "--bucket-cap-mb", 4, 100, "--optimizer-ms", 20)  # 2 MiB take 10 ms
    rows = [line.split() for line in text.split("no communication")[0].splitlines()[3:-1]]
    assert rows == [
        ["4", "3", "140.0", "60.0", "40.0", "20.0", "<-", "best"],
        ["100", "1", "180.0", "60.0", "0.0", "60.0"],
    ]
    lanes = re.findall(r"\|(.*)\|", text)
    assert [len(lane) for lane in lanes] == [60, 60]
    per_ms = 60 / 140
    assert lanes[0].count("F") == pytest.approx(40 * per_ms, abs=1)
    assert lanes[0].count("B") == pytest.approx(60 * per_ms, abs=1)
    assert re.fullmatch(r"F+B+\.+O+", lanes[0])
    assert re.fullmatch(r" +0+1+2+ +", lanes[1])  # ready at 60, 80, 100 ms, and 20 ms each
    assert lanes[1].index("0") == pytest.approx(60 * per_ms, abs=1)
    assert "no communication 120.0 ms" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ranks", 0], r"--ranks: '0' is not a whole number"),
        (["--ranks", -2], r"--ranks: '-2' is not a whole number"),
        (["--ranks", "2.5"], r"--ranks: '2.5' is not a whole number"),
        (["--ranks", "9" * 5000], r"--ranks: '9+' is not a whole number"),
        (["--ranks", "٤"], r"--ranks: '٤' is not a whole number"),
        (["--layers", 0], r"--layers: '0' is not a whole number"),
        (["--layers", 9_999_999], r"--layers 9999999 is more than 100000"),
        (["--mib-per-layer", 0], r"--mib-per-layer: '0' is not a number from 1e-09 to"),
        (["--mib-per-layer", 1, "--total-mib", 2], r"not allowed with"),
        (["--forward-ms", -1], r"--forward-ms: '-1' is not a number from 0 to"),
        (["--backward-ms", "nan"], r"--backward-ms: 'nan' is not a number from 0 to"),
        (["--optimizer-ms", "inf"], r"--optimizer-ms: 'inf' is not a number"),
        (["--latency-us", "1e400"], r"--latency-us: '1e400' is not a number"),
        (["--latency-us", "fast"], r"--latency-us: 'fast' is not a number"),
        (["--gbit-per-s", 0], r"--gbit-per-s: '0' is not a number from 1e-09 to"),
        (["--algorithm", "star"], r"--algorithm: invalid choice: 'star'"),
        (["--bucket-cap-mb", 0], r"--bucket-cap-mb: '0' is not a cap in MiB from 1e-09 to 1e\+12"),
        (["--bucket-cap-mb", 25, "nan"], r"--bucket-cap-mb: 'nan' is not a cap in MiB"),
        (["--bucket-cap-mb"], r"--bucket-cap-mb: expected at least one argument"),
        (["--accumulation", 0], r"--accumulation: '0' is not a whole number"),
        (["--gradients", "missing.json"], r"cannot read missing.json: No such file"),
        (["--gradients", "."], r"cannot read \.: Is a directory"),
        (["--gradients", "a\0b"], r"cannot read"),
        (["--caps", 1], r"^ddplab simulate: unrecognized arguments: --caps 1; "),
        (["--rank", 1], r"unrecognized arguments: --rank 1; did you mean --ranks\?; see"),
    ],
)
def test_silly_arguments(capsys, arguments, said):
    assert re.search(said, refused(capsys, "simulate", *arguments))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", r"ready\.json is not JSON: Expecting value at line 1, column 1"),
        (b"\x80\x02}q\x00.\xff\xfe", r"ready\.json is not JSON text"),
        (b"[[1, 2],", r"ready\.json is not JSON: .* line 1"),
        (b"[" * 100_000, r"ready\.json is not JSON"),
        (b"[[" + b"9" * 5000 + b", 1]]", r"ready\.json is not JSON text"),
        ([], r"it holds an empty list"),
        ({"a": 1}, r"it holds dict \{\"a\": 1\}"),
        ([[1, 2], [3]], r"ready\.json, item 1: \[3\] is not a pair"),
        ([[1, 2], 7], r"ready\.json, item 1: 7 is not a pair"),
        ([["soon", 2]], r"item 0: ready_ms must be a number of 0 or more; got \"soon\""),
        ([[-1, 2]], r"item 0: ready_ms must be .* got -1"),
        (b"[[NaN, 2]]", r"item 0: ready_ms must be .* got NaN"),
        (b"[[Infinity, 2]]", r"item 0: ready_ms must be .* got Infinity"),
        ([[True, 2]], r"item 0: ready_ms must be .* got true"),
        ([[1, 2], [2, -3]], r"item 1: bytes must be a whole number of 0 or more; got -3"),
        ([[1, 2.5]], r"item 0: bytes must be .* got 2.5"),
        (b"[[1, NaN]]", r"item 0: bytes must be .* got NaN"),
        ([[1, 10**300]], r"item 0: bytes must be .* got 10+\.\.\."),
        ([[1, None]], r"item 0: bytes must be .* got null"),
    ],
)
def test_silly_files(capsys, ready, content, said):
    assert re.search(said, refused(capsys, "simulate", "--gradients", ready(content)))


def test_files_and_options_that_disagree(capsys, ready):
    path = ready([[10, 4], [40, 4]])
    assert "--backward-ms 30 is before the last gradient" in refused(
        capsys, "simulate", "--gradients", path, "--backward-ms", 30
    )
    for option in ("--layers", "--mib-per-layer", "--total-mib"):
        assert f"{option} describes equal layers" in refused(capsys, "simulate", "--gradients", path, option, 3)


def test_json_says_what_is_wrong(capsys):
    assert cli.main(["simulate", "--json", "--gradients", "missing.json"]) == 2
    assert "missing.json" in json.loads(capsys.readouterr().out)["error"]


def test_as_a_program_in_ascii():
    ran = subprocess.run(
        [sys.executable, "-m", "ddplab", "simulate", "--bucket-cap-mb", "1", "25"],
        env={"PYTHONIOENCODING": "ascii", "PYTHONPATH": ":".join(sys.path), "COLUMNS": "60"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "<- best" in ran.stdout
    assert max(map(len, ran.stdout.splitlines())) <= 90
