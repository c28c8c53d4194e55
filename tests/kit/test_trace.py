"""``ddplab trace``: real DDP on real ranks, traces of GPUs from a public repository, and files that are none."""

import gzip
import json
import re
import tracemalloc

import pytest
import torch
import torch.distributed as dist
from refusal import refused
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.profiler import ProfilerActivity, profile, schedule

from ddplab import launch
from ddplab.apparatus.public_traces import FOLDER
from ddplab.buckets import MIB, assign
from ddplab.cli import main
from ddplab.trace import buckets, lateness, read, read_trace, steps
from ddplab.trace.spans import clipped, length, union, without

SIZES = [300] * 8


@pytest.fixture(params=["ijson", "json"])
def parser(request, monkeypatch):
    """What parses a trace: ijson, or where that is missing Python's own, which wants it whole."""
    if request.param == "json":
        monkeypatch.setattr(read, "ijson", None)


def record(folder):
    """Train for three steps under the profiler; each rank writes its trace."""
    model = DDP(nn.Sequential(*(nn.Linear(n, n) for n in SIZES)), bucket_cap_mb=1)

    def write(profiler):
        profiler.export_chrome_trace(f"{folder}/rank{dist.get_rank()}.json")

    three = schedule(wait=2, warmup=1, active=3)
    with profile(activities=[ProfilerActivity.CPU], schedule=three, record_shapes=True, on_trace_ready=write) as steps:
        for _ in range(6):
            model(torch.randn(4, SIZES[0])).sum().backward()
            steps.step()


@pytest.fixture(scope="module")
def gloo(tmp_path_factory):
    """The folder with the traces of two ranks."""
    folder = tmp_path_factory.mktemp("traces")
    launch(record, 2, str(folder), env={"CUDA_VISIBLE_DEVICES": ""})
    return folder


def event(name, category, start_us, us, **arguments):
    """One event of a trace."""
    return {"ph": "X", "name": name, "cat": category, "ts": start_us, "dur": us, "args": arguments}


def kernel(start_us, us, **arguments):
    """An all-reduce of NCCL as kineto writes it."""
    known = {"Collective name": "allreduce", "In msg nelems": 1000, "dtype": "Float", "Group size": 4, "stream": 20}
    return event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "kernel", start_us, us, **{**known, **arguments})


def written(path, *events, rank=0):
    """A trace with these events."""
    info = {"backend": "nccl", "rank": rank, "world_size": 4}
    path.write_text(json.dumps({"distributedInfo": info, "traceEvents": list(events)}))
    return path


def test_the_buckets_of_a_run_are_those_that_ddp_assigns(gloo):
    """Three steps, in each the all-reduces of the plan."""
    trace = read_trace(gloo / "rank1.json")
    sizes = [4 * p.numel() for n in SIZES for p in nn.Linear(n, n).parameters()][::-1]
    plan = [sum(sizes[at] for at in bucket) // 4 for bucket in assign(sizes, MIB, MIB)]
    assert (trace.rank, trace.world_size, trace.on_gpu) == (1, 2, False)
    assert [bucket.elements for bucket in buckets(steps(trace))] == plan
    assert len(steps(trace)) == 3


def test_the_command_reads_all_ranks_of_a_folder(gloo, capsys, tmp_path):
    """A paragraph per rank, and who came last; the picture is an SVG."""
    picture = tmp_path / "step.svg"
    assert main(["trace", str(gloo), "--svg", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "rank0.json: rank 0 of 2, CPU, gloo; 3 steps" in out
    assert "2 ranks, 9 collectives compared" in out
    assert [">rank 0<" in picture.read_text(), ">rank 1<" in picture.read_text()] == [True, True]
    assert main(["trace", str(gloo), "--json"]) == 0
    assert [one["rank"] for one in json.loads(capsys.readouterr().out)["traces"]] == [0, 1]


def test_exposed_is_what_runs_beside_nothing(tmp_path):
    """A kernel of NCCL from 100 to 300 µs, computing until 250: 50 µs show; the next step's are its own."""
    path = written(
        tmp_path / "t.json",
        event("ProfilerStep#1", "user_annotation", 0, 400),
        event("ProfilerStep#2", "user_annotation", 400, 400),
        event("gemm", "kernel", 0, 180, stream=7),
        event("gemm", "kernel", 150, 100, stream=9),
        event("cudaLaunchKernel", "cuda_runtime", 90, 2, correlation=5),
        kernel(100, 200, correlation=5),
        event("cuLaunchKernelEx", "cuda_driver", 399, 1, correlation=6),
        kernel(500, 100, correlation=6),  # launched in the first step, run in the second
    )
    first, second = steps(read_trace(path))
    assert len(first.collectives) == 2
    assert not second.collectives
    assert first.exposed_s == pytest.approx(150e-6)
    assert first.communicating_s == pytest.approx(300e-6)
    assert first.computing_s == pytest.approx(250e-6)


def test_bus_bandwidth_counts_as_nccl_tests(tmp_path):
    """1,000 floats over four ranks in 10 µs: 2·3/4·4,000 bytes on each link."""
    (bucket,) = buckets(steps(read_trace(written(tmp_path / "t.json", kernel(0, 10)))))
    assert bucket.bus_bytes_per_s == pytest.approx(1.5 * 4000 / 10e-6)


def test_the_shortest_kernel_is_the_late_rank(tmp_path):
    """Rank 2 comes 90 µs after the others in the first collective, on a clock of its own; rank 0 in the second."""
    times = {0: (100, 10), 1: (100, 30), 2: (10, 30), 3: (100, 30)}
    paths = [
        written(tmp_path / f"{rank}.json", kernel(1e6 * rank, first), kernel(1e6 * rank + 500, second), rank=rank)
        for rank, (first, second) in times.items()
    ]
    late, compared = lateness([read_trace(path) for path in paths])
    assert compared == 2
    assert [one.last for one in late] == [1, 0, 1, 0]
    assert late[2].awaited_s == pytest.approx(90e-6)
    assert late[1].waited_s == pytest.approx(110e-6)


def job(folder, late=2, first_step=0, ranks=4):
    """Two steps with a broadcast and two all-reduces; rank ``late`` computes 3 ms longer before the second of these."""
    paths = []
    for rank in range(ranks):
        zero, events = 1e6 * rank, []  # no common clock
        for step in range(first_step, first_step + 2):
            begin = zero + (20_000 + 3_000 * (step % 2)) * step
            own_us = 6_000 if rank == late else 3_000
            entered_us = 2_000 * rank  # earlier, each rank at another moment
            events += [event(f"ProfilerStep#{step}", "user_annotation", begin - entered_us, 12_000 + entered_us)]
            events += [kernel(begin, 10 + rank, **{"Collective name": "broadcast", "In msg nelems": 53})]
            events += [kernel(begin + 1_000, 1_000 - rank), event("gemm", "kernel", begin + 2_500, own_us, stream=7)]
            events += [kernel(begin + 2_500 + own_us, 8_000 - own_us)]
        paths.append(written(folder / f"{rank}.json", *events, rank=rank))
    return paths


def test_ranks_of_a_job_get_one_table_and_one_picture(tmp_path, capsys):
    """The late rank is named; its second all-reduce begins last and ends with the others, in signs and in the SVG."""
    picture = tmp_path / "step.svg"
    assert main(["trace", *map(str, job(tmp_path)), "--svg", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "4 ranks, 4 collectives compared" in out  # the broadcasts are not
    assert "rank 2 costs most: others of these wait up to 3" in out
    lane = {rank: re.search(rf"  rank {rank} \|(.*)\|", out)[1] for rank in range(4)}
    assert lane[2].index("3") > lane[0].index("3") + 5
    assert abs(lane[2].rindex("3") - lane[0].rindex("3")) <= 1
    bars = [float(x) for x in re.findall(r'<rect x="([\d.]+)"[^>]* fill="#7a3b8f"', picture.read_text())]
    assert bars[2 * 3 + 2] > bars[2] + 50
    assert out.count("allreduce") == 2 + 1  # one table, of the first rank, and how the clocks were set


def test_traces_of_other_steps_are_not_compared(tmp_path, capsys):
    """Steps of other lengths: the n-th collectives cannot end together, whatever the clocks."""
    (tmp_path / "later").mkdir()
    early, later = job(tmp_path), job(tmp_path / "later", first_step=1)
    assert "are not of the same steps" in refused(capsys, "trace", early[0], later[1])


def test_a_long_list_keeps_the_longest(tmp_path, capsys):
    """Of 50 collectives the 40 longest, by their numbers."""
    path = written(tmp_path / "t.json", *(kernel(1000 * number, 100 + number) for number in range(50)))
    assert main(["trace", str(path)]) == 0
    out = capsys.readouterr().out
    assert "the 40 longest of 50" in out
    assert [line.split()[0] for line in out.splitlines() if "allreduce" in line] == [str(n) for n in range(11, 51)]


def test_memory_does_not_grow_with_the_file(tmp_path):
    """Four megabytes of events that are not asked for, in one."""
    long = event("aten::mm", "cpu_op", 0, 1, stack="x" * 2000)
    path = written(tmp_path / "t.json", *[{**long, "ts": 10 * number} for number in range(2000)], kernel(0, 10))
    assert path.stat().st_size > 4e6
    tracemalloc.start()
    trace = read_trace(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(trace.collectives) == 1
    assert most < 1e6


@pytest.mark.parametrize(
    "odd", [{"args": 3}, {"cat": ["kernel"]}, {"name": None}, {"ts": "now"}, {"dur": -1}, {"dur": None}], ids=str
)
@pytest.mark.usefixtures("parser")
def test_an_event_of_another_kind_is_left_out(odd, tmp_path):
    """The rest is read."""
    path = written(tmp_path / "t.json", kernel(0, 10), {**kernel(20, 10), **odd}, kernel(40, 10, correlation={}))
    assert len(read_trace(path).collectives) == 2


@pytest.mark.usefixtures("parser")
def test_a_public_trace_is_read_as_it_is():
    """Against the JSON itself: every kernel of NCCL, with its size."""
    path = FOLDER / "a100-pair.json.gz"
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    kernels = sorted((e for e in events if e["name"].startswith("nccl")), key=lambda e: e["ts"])
    trace = read_trace(path)
    assert [one.elements for one in trace.collectives] == [e["args"]["In msg nelems"] for e in kernels]
    assert [one.seconds for one in trace.collectives] == pytest.approx([e["dur"] / 1e6 for e in kernels])
    assert trace.nccl == "2.17.1"


def test_without_ijson_a_large_trace_is_refused(tmp_path, monkeypatch, capsys):
    """It would be read whole: one line says what to install."""
    monkeypatch.setattr(read, "ijson", None)
    monkeypatch.setattr(read, "_MOST_WITHOUT_IJSON", 1 << 20)
    (tmp_path / "t.json").write_bytes(b'{"traceEvents": [' + b" " * (1 << 20))
    assert "more than 1 MiB of JSON; install ijson" in refused(capsys, "trace", tmp_path / "t.json")


def test_spans():
    """Unions, and what is left of one without another."""
    assert union([(3, 4), (0, 2), (1, 2.5)]) == [(0, 2.5), (3, 4)]
    assert without([(0, 10)], [(1, 2), (4, 12)]) == [(0, 1), (2, 4)]
    assert without([(0, 1), (2, 3)], []) == [(0, 1), (2, 3)]
    assert without([(0, 1)], [(-1, 5)]) == []
    assert length(clipped([(0, 2), (3, 9)], 1, 4)) == 2


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "ends in the middle"),
        (b"<html>", "it holds no JSON"),
        (b"\x80\x02cpickle", "it holds no JSON"),
        (b'{"traceEvents": [{"ph": "X", "na', "ends in the middle"),
        (gzip.compress(b'{"traceEvents": [' + b" " * 4000, mtime=0)[:-12], "ends in the middle"),
        (b'{"version": 1}', "it has no list 'traceEvents'"),
        (b"[1, 2, 3]", "holds no collective"),
        (b'{"distributedInfo": [1], "deviceProperties": {"name": "x"}, "traceEvents": []}', "holds no collective"),
        (b'{"deviceProperties": ["x"], "traceEvents": []}', "holds no collective"),
        (b'{"traceEvents": [{"ph": "X", "name": "a", "cat": "kernel", "ts": "now", "dur": 1}]}', "holds no collective"),
        (b'{"traceEvents": [{"ph": "X", "name": "a", "cat": "cpu_op", "ts": 1, "dur": 1}]}', "holds no collective"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value.replace(" ", "-"),
)
@pytest.mark.usefixtures("parser")
def test_what_is_no_trace_gets_one_line(content, says, tmp_path, capsys):
    """It names the file."""
    path = tmp_path / "t.json"
    path.write_bytes(content)
    line = refused(capsys, "trace", path)
    assert says in line
    assert str(path) in line


def test_files_that_do_not_belong_together(tmp_path, capsys):
    """A rank twice, a folder without traces, a file that is not there."""
    a, b = (written(tmp_path / name, kernel(0, 1)) for name in ("a.json", "b.json"))
    assert "are both of rank 0" in refused(capsys, "trace", a, b)
    (tmp_path / "empty").mkdir()
    assert "holds no trace" in refused(capsys, "trace", tmp_path / "empty")
    assert "No such file" in refused(capsys, "trace", tmp_path / "absent.json")
