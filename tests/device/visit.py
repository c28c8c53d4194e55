"""Record an edition on a machine with one GPU and little time: two or three calls of one command, results in a folder.

    python3 tests/device/visit.py --plan                        at home: the slices, and how long each may take
    DDPLAB_COMMIT=… python3 tests/device/visit.py first         on the machine: all checks, then slice after slice
    DDPLAB_COMMIT=… python3 tests/device/visit.py again         what is left; of what failed, what changed
    DDPLAB_COMMIT=… python3 tests/device/visit.py again --labs cuda-graphs mfu        only these, recorded afresh
    DDPLAB_COMMIT=… python3 tests/device/visit.py again --nccl  first the ranks that share a GPU, under another NCCL

It needs Python, torch with CUDA, numpy, cloudpickle, matplotlib, pytest and psutil; no network, no git, no make. Of
15 minutes give the first call 400 s, and read its table before the next, which gets what is left. Give ``--limit``
(seconds) some 20 s less than the time after which the machine ends a command, and take the results from ``--out``, by
default $OUT: ``record.log``, and one archive per edition.

How a visit goes. The checks come first. Each stops the visit with one line and an exit status of its own, so that the
machine can go back at once: 10 no GPU, 11 a package is missing, 12 no CUDA or no NCCL, 13 ``ddplab.launch`` fails.
Then the slices, in the order of their value: the labs that only a GPU can show; two NCCL ranks on the one GPU; memory
and a starved GPU; claims under NCCL; profiles, timelines, memory and compile. Each is a process with a bound, and its
results are in the archive before the next one starts: a slice that hangs or fails ends only itself, and a slice that no
longer fits is passed over. Editions stay in ``_build/editions``, so the next call goes on where this one ended. At the
end a table says what each lab and claim did, and a list what comes back: at most 8 files of 16 MiB, two folders deep.
Exit status: 0 all is recorded, 3 something is left, 1 nothing is left but a lab or a claim failed.

What it takes along, if present in the root of the tree: ``.whl/*.whl``, pure wheels of packages that the machine lacks;
``.nccl/libnccl.so.2.xz``, a newer NCCL, cut to fit by ``nccl_sm90.py``, whose edition has its version in the name.

To look at afterwards, at home, before anything is committed (``ddplab edition unpack``, ``ddplab edition diff cpu-gloo
h200``, ``make html EDITION=h200``):

- the peak of bf16, and the rate of a copy on the GPU, against the data sheet of the card;
- no MFU above 100 %, nothing allocated beyond what is reserved, the predicted memory within 5 % of the measured;
- both races of ``pinned-memory`` seen, and no difference between a graph's replay and the plain step;
- of two ranks on one GPU: equal results on both, ``"shared"`` in every launch, and no time shown;
- the manifest's commit, driver and NCCL; what failed, and what says that it needs something.

When X fails: no GPU or no CUDA: give the machine back, the line says why. The first CUDA context takes more than 3 s:
leave out the labs with many launches (compile-splits, memory-ledger). NCCL hangs with one rank: NCCL_SOCKET_IFNAME=lo.
Two ranks on one GPU fail or hang: their labs run unshared, their claims are passed over; try ``again --labs
two-nccl-ranks`` with NCCL_MAX_CTAS=1 NCCL_PROTO=Simple, with the newer NCCL also NCCL_CUMEM_ENABLE=0, then
NCCL_P2P_DISABLE=1. A lab fails: repair it, and call ``again``; the others are not repeated. sm-contention fails alone
where Triton finds no C compiler; cuda-graphs may stay failed, which is evidence, too. Tracebacks without the
names of files: the machine's cloudpickle is 3.1.3 or newer, which leaves them out.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.util
import lzma
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
EDITIONS, SITE = ROOT / "_build" / "editions", ROOT / "_build" / "site"
sys.path[:0], sys.path[len(sys.path) :] = [str(ROOT / "gallery")], [str(SITE)]

from ddplab.recording import archive, plan  # noqa: E402
from ddplab.recording.edition_folder import DamagedError, Edition  # noqa: E402
from ddplab.recording.keys import lab_key  # noqa: E402
from ddplab.recording.machine import machine  # noqa: E402
from ddplab.recording.script import lab_id  # noqa: E402
from ddplab.runtime import shared_gpu  # noqa: E402
from ddplab.runtime.gpus import cards, nvidia_smi  # noqa: E402

NEEDED = ("torch", "numpy", "cloudpickle", "matplotlib", "pytest", "psutil")
NO_GPU, NO_PACKAGE, NO_CUDA, NO_LAUNCH = 10, 11, 12, 13  # exit statuses of checks
FAILED, LEFT = 1, 3
CHECKS_S, LEAST_S = 30.0, 20.0  # an estimate of all checks; less time than this is not worth a slice
CHECK_S, LAUNCH_S = 90.0, 45.0  # of one check, and of a launch in it: a slow disk needs half of that
END_S, GRACE_S = 15.0, 5.0  # kept for archive and table; of a recorder that does not end in time
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MOST_FILES, MOST_MIB, MOST_DEEP = 8, 16, 2  # of what comes back


@dataclass(frozen=True)
class Slice:
    """Labs, or the claims under NCCL, that are recorded by one process."""

    what: str
    most_s: float
    labs: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    shared: bool = False  # NCCL ranks share the GPU


SHARED = Slice("two NCCL ranks on one GPU", 110, ("two-nccl-ranks", "nccl-at-fault", "nccl-failures"), shared=True)
SLICES = (  # the most valuable first: the time may end at any of them
    Slice("only a GPU can tell, 1 of 3", 110, ("host-runs-ahead", "gpu-memory", "cost-of-ddp", "mfu")),
    Slice("only a GPU can tell, 2 of 3", 110, ("batch-fills-card", "cuda-trace", "gpu-precision", "cuda-graphs")),
    Slice("only a GPU can tell, 3 of 3", 110, ("pinned-memory", "sm-contention", "bus-bandwidth")),
    SHARED,
    Slice("memory and a starved GPU", 80, ("out-of-memory", "starved-gpu")),
    Slice("claims under NCCL", 180, claims=("nccl",), shared=True),
    Slice(
        "profiles and timelines, memory, compile",
        200,
        (
            *("profile-a-step", "backward-timeline", "hooks-and-overlap", "memory-of-views", "memory-ledger"),
            *("compile-overlap", "compile-splits", "scaler-inf", "tune-buckets", "hello-ranks"),
        ),
    ),
)

# -- programs of the checks, each in a process of its own -------------------------------------------

PACKAGES = f"""
import importlib, time
for name in {NEEDED}:
    began = time.perf_counter()
    found = importlib.import_module(name)
    print(name, getattr(found, "__version__", "?"), f"{{time.perf_counter() - began:.1f}} s", flush=True)
"""
CUDA = """
import time
times = [time.perf_counter()]
import torch, torch.distributed as dist
times.append(time.perf_counter())
ones = torch.ones(1 << 20, device="cuda")
torch.cuda.synchronize()
times.append(time.perf_counter())
gpu = torch.device("cuda", 0)
dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=gpu)
dist.all_reduce(ones)
torch.cuda.synchronize()
times.append(time.perf_counter())
assert (torch.ones(512, 512, device="cuda") @ torch.ones(512, 512, device="cuda"))[0, 0].item() == 512
times.append(time.perf_counter())
parts = zip(("import torch", "CUDA context", "NCCL of one rank", "first product"), times, times[1:])
print(torch.__version__, *(f"{name} {b - a:.2f} s" for name, a, b in parts), sep=", ")
dist.destroy_process_group()
"""
LAUNCH = """
import os, sys, tempfile, time
from pathlib import Path
from ddplab import device, launch
from ddplab.runtime import evidence

def worker():
    import torch, torch.distributed as dist
    ones = torch.ones(4, device=device())
    dist.all_reduce(ones)
    return ones.tolist()

for ranks in map(int, sys.argv[2:]):
    evidence.begin(Path(tempfile.mkdtemp(), "launch.json"))
    began = time.perf_counter()
    sums = launch(worker, ranks, timeout_s=float(sys.argv[1]), quiet=True)
    took_s = time.perf_counter() - began
    (facts,) = evidence.end()["launches"]
    assert sums == [[ranks] * 4] * ranks, sums
    assert facts["backend"] == "nccl" or os.environ["DDPLAB_SHARE_GPU"] != "1", f"launch took {facts['backend']}"
    shown = ", ".join(f"{name} {facts.get(name)}" for name in ("backend", "nccl", "gpu", "shared"))
    print(f"launch of {ranks}: {took_s:.1f} s, {shown}", flush=True)
"""


class Stop(Exception):  # noqa: N818  it ends the visit in good order
    """A check found that nothing can be recorded here."""

    def __init__(self, why: str, status: int) -> None:
        super().__init__(why)
        self.status = status


class Visit:
    """One call of the command: its log, its clock, and the process that it waits for."""

    def __init__(self, out: Path, limit_s: float) -> None:
        self.began_s, self.limit_s, self.out = time.monotonic(), limit_s, out
        out.mkdir(parents=True, exist_ok=True)
        self._log: IO[str] = (out / "record.log").open("a", encoding="utf-8")
        self._running: subprocess.Popen[str] | None = None
        self.env = {**os.environ, "PYTHONUNBUFFERED": "1", "MPLBACKEND": "agg"}
        self.env["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(ROOT / "gallery"), str(SITE), os.environ.get("PYTHONPATH")])
        )

    def left_s(self) -> float:
        """Seconds that slices still have."""
        return self.limit_s - END_S - (time.monotonic() - self.began_s)

    def say(self, text: str) -> None:
        """A line with the time of the visit."""
        self.tell(f"### {time.monotonic() - self.began_s:.0f} s: {text}")

    def tell(self, text: str) -> None:
        """Lines for the screen and the log."""
        print(text, flush=True)
        print(text, file=self._log, flush=True)

    def run(self, command: list[str], bound_s: float, **env: str) -> tuple[int | None, list[str]]:
        """Run a command, its lines told as they come; its exit status, None if it had to be ended, and its lines."""
        lines: list[str] = []
        process = self._running = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

        def read() -> None:
            for line in process.stdout or ():
                lines.append(line.rstrip())
                self.tell(f"    {lines[-1]}")

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            process.wait(bound_s)
            status: int | None = process.returncode
        except subprocess.TimeoutExpired:
            self.end()
            status = None
        self._running = None
        reader.join(2)  # what it has left behind may hold its output open
        return status, lines

    def end(self) -> None:
        """End the process that runs, if one does, and all that it has started."""
        process, self._running = self._running, None
        if process is None or process.poll() is not None:
            return
        below: list[Any] = []
        with contextlib.suppress(Exception):  # without psutil, or too late
            import psutil

            below = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)  # the recorder ends what it has started, and writes its manifest
        process.kill()
        process.wait()
        for one in below:
            with contextlib.suppress(Exception):
                one.kill()

    def program(self, code: str, *arguments: str, bound_s: float, **env: str) -> str:
        """Run a program of a check; why it failed in a line, or nothing."""
        status, lines = self.run([sys.executable, "-c", code, *arguments], bound_s, **env)
        if status is None:
            return f"it hangs: nothing after {bound_s:g} s"
        return "" if status == 0 else next((line for line in reversed(lines) if line.strip()), f"exit status {status}")


# -- checks -----------------------------------------------------------------------------------------


def check(visit: Visit, *, whole: bool) -> str:
    """Check what everything stands on; return the name of the edition.

    Args:
        visit: whose log and processes are used.
        whole: also packages by import, CUDA, NCCL of one rank and launches, as needed once on a machine.

    Raises:
        Stop: nothing can be recorded here.
    """
    there = cards()
    if not there:
        raise Stop("nvidia-smi shows no GPU, or is not there", NO_GPU)
    for card in there:
        visit.tell("    " + ", ".join(f"{name} {value}" for name, value in card.items() if value is not None))
    if state := nvidia_smi("--query-gpu=persistence_mode,compute_mode", "--format=csv,noheader").strip():
        visit.tell(f"    persistence mode, compute mode: {state}")
    tools = [tool for tool in ("git", "make", "cc", "py-spy") if shutil.which(tool)]
    shm_gib = shutil.disk_usage("/dev/shm").free / 2**30 if Path("/dev/shm").exists() else 0
    visit.tell(f"    Python {sys.version.split()[0]}, {os.cpu_count()} cores, /dev/shm {shm_gib:.1f} GiB free")
    visit.tell(f"    tools here: {' '.join(tools) or 'none'}")
    if not os.environ.get("DDPLAB_COMMIT") and not ("git" in tools and (ROOT / ".git").exists()):
        visit.say("the edition will not know its commit: set DDPLAB_COMMIT")
    for wheel in sorted(ROOT.glob(".whl/*.whl")):
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(SITE)
        importlib.invalidate_caches()
        visit.say(f"unpacked {wheel.name}")
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise Stop(f"packages are missing: {' '.join(missing)}", NO_PACKAGE)
    if whole:
        for what, status, code, arguments in (
            ("a package cannot be imported", NO_PACKAGE, PACKAGES, ()),
            ("no CUDA, or no NCCL of one rank", NO_CUDA, CUDA, ()),
            ("ddplab.launch fails", NO_LAUNCH, LAUNCH, (f"{LAUNCH_S:g}", "1", "2", "1")),
        ):
            if why := visit.program(code, *arguments, bound_s=CHECK_S, DDPLAB_SHARE_GPU="0"):
                raise Stop(f"{what}: {why}", status)
    visit.say("the checks are over")
    return edition_name(there[0]["name"])


def edition_name(gpu: str) -> str:
    """``h100`` of "NVIDIA H100 80GB HBM3", ``h200`` of "NVIDIA H200"; of others their name in small letters."""
    known = re.search(r"\bh[12]00\b", gpu.lower())
    return known[0] if known else re.sub(r"[^a-z0-9]+", "-", gpu.lower().removeprefix("nvidia ")).strip("-") or "gpu"


def can_share(visit: Visit, **env: str) -> bool:
    """Whether two NCCL ranks can share the GPU, seen by doing it."""
    why = visit.program(LAUNCH, f"{LAUNCH_S:g}", "2", bound_s=CHECK_S, DDPLAB_SHARE_GPU="1", NCCL_DEBUG="WARN", **env)
    visit.say(f"two NCCL ranks cannot share this GPU: {why}" if why else "two NCCL ranks share this GPU")
    return not why


def other_nccl(visit: Visit) -> tuple[str, str] | None:
    """The path and the version, such as ``230``, of the NCCL that was brought along; None if it cannot be loaded."""
    packed, path = ROOT / ".nccl" / "libnccl.so.2.xz", ROOT / "_build" / "nccl" / "libnccl.so.2"
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with lzma.open(packed) as stream, path.with_suffix(".tmp").open("wb") as unpacked:
                shutil.copyfileobj(stream, unpacked, 1 << 20)
            path.with_suffix(".tmp").replace(path)
        number = ctypes.c_int()
        ctypes.CDLL(str(path)).ncclGetVersion(ctypes.byref(number))
    except (OSError, lzma.LZMAError, EOFError, AttributeError) as error:
        visit.say(f"the NCCL that was brought along cannot be used: {error}")
        return None
    return str(path), f"{number.value // 10000}{number.value // 100 % 100}"


# -- slices -----------------------------------------------------------------------------------------


def record(visit: Visit, name: str, part: Slice, options: argparse.Namespace, **env: str) -> bool:
    """Record a slice, and put the edition into the archive; whether something of it is left."""
    labs = [lab for lab in part.labs if options.labs or worth_it(visit, Edition(EDITIONS / name), lab)]
    if part.labs and not labs:
        return False
    seconds = min(part.most_s, visit.left_s())
    wanted = " ".join([*labs, *(f"claims {claim}" for claim in part.claims)])
    if seconds < LEAST_S:
        visit.say(f"passed over, {max(0, visit.left_s()):.0f} s are left: {part.what}: {wanted}")
        return True
    visit.say(f"{part.what}, at most {seconds:.0f} s: {wanted}")
    command = [sys.executable, "-m", "ddplab.recording", name, "--into", str(EDITIONS), "--budget", f"{seconds:.0f}"]
    command += ["--limit", f"{options.lab_limit:g}", "--launch-limit", f"{options.launch_limit:g}"]
    command += ["--labs", *labs] if labs else []
    command += ["--claims", *part.claims] if part.claims else ["--no-claims"]
    command += ["--fresh"] if options.labs or options.claims else []
    began_s = time.monotonic()
    try:
        status, _ = visit.run(command, seconds + GRACE_S, **env)
    finally:
        visit.end()
        pack(visit, name)
    how = "had to be ended" if status is None else f"exit status {status}"
    visit.say(f"{part.what}: {how} after {time.monotonic() - began_s:.0f} s")
    return status not in (0, FAILED)


def scripts() -> dict[str, Path]:
    """The labs of this tree."""
    return {lab_id(script): script for script in (ROOT / "gallery").glob("*/plot_*.py")}


def worth_it(visit: Visit, edition: Edition, lab: str) -> bool:
    """Whether to record a lab: not one that failed here and has not changed since; the recorder knows what it has."""
    script = scripts().get(lab)
    if script is None:
        visit.say(f"there is no lab {lab!r} in this tree")
        return False
    kept = edition.lab(lab)
    if kept and kept.get("failed") and kept["key"] == lab_key(script, kept["read"]):
        visit.say(f"{lab} failed before and has not changed: passed over; --labs {lab} runs it again")
        return False
    return True


def pack(visit: Visit, name: str) -> None:
    """Put the edition, as far as it is recorded, where it is taken from."""
    try:
        archive.pack(Edition(EDITIONS / name), visit.out)
    except (archive.ArchiveError, DamagedError, OSError) as problem:
        visit.say(f"no archive of {name}: {problem}")


# -- at the end -------------------------------------------------------------------------------------


def table(edition: Edition) -> Iterator[str]:
    """A line for each lab and claim: seconds, launches, and how it went; then the ends of what failed."""
    kept = {**edition.labs(), **edition.results()}
    yield f"{'lab or claim':36} {'seconds':>8}  {'launches: ranks, backend, device (how shared)':40}  result"
    for name, one in kept.items():
        launches = ", ".join(sorted({_launch(launch) for launch in one["launches"]})) or "no launch"
        yield f"{name:36} {one['seconds']:6.1f} s  {launches:40}  {_how(one)}"
    for name, one in kept.items():
        if lines := [line for line in _failure(one).splitlines()[-6:] if line.strip()]:
            yield f"why {name} failed:"
            yield from (f"    {line}" for line in lines)


def _launch(launch: dict[str, Any]) -> str:
    shared = f" ({launch['shared']})" if launch.get("shared") else ""
    return f"{launch['ranks']} {launch['backend']} {'GPU' if launch.get('gpu') else 'CPU'}{shared}"


_ERROR = re.compile(r"(?m)^(?:E +)?((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b.*)")


def _how(one: dict[str, Any]) -> str:
    if failed := _failure(one):
        errors = _ERROR.findall(failed)
        return f"FAILED {(errors or [one.get('why') or failed.splitlines()[-1]])[-1].strip()[:160]}"
    return str(one.get("needs") or (one.get("outcome") == "skipped" and one.get("why", "skipped")) or "ok")


def _failure(one: dict[str, Any]) -> str:
    """The whole text of a failure: of a lab a traceback, of a claim what pytest wrote of it, if its process lived."""
    return str(one.get("failed") or (one.get("outcome") == "failed" and one.get("why", "failed")) or "").strip()


def what_comes_back(out: Path) -> Iterator[str]:
    """The files with their sizes, and each limit that they break."""
    files = sorted(path for path in out.rglob("*") if path.is_file())
    for path in files:
        mib = path.stat().st_size / 2**20
        name = path.relative_to(out)
        yield f"{1024 * mib:8.0f} KiB  {name}"
        if mib > MOST_MIB:
            yield f"WARNING: {name} does not come back: more than {MOST_MIB} MiB"
        if len(name.parts) - 1 > MOST_DEEP:
            yield f"WARNING: {name} does not come back: more than {MOST_DEEP} folders deep"
    if len(files) > MOST_FILES:
        yield f"WARNING: {len(files)} files, and at most {MOST_FILES} come back"


# -- plan and program -------------------------------------------------------------------------------


def chosen(options: argparse.Namespace) -> tuple[Slice, ...]:
    """The slices of this call: those that are named by hand, else all."""
    if not (options.labs or options.claims):
        return SLICES
    labs, claims = options.labs or (), options.claims or ()
    rest = tuple(lab for lab in labs if lab not in SHARED.labs)
    shared = tuple(lab for lab in labs if lab in SHARED.labs)
    parts = (
        Slice("asked for", options.limit, rest),
        Slice("asked for, two NCCL ranks on one GPU", options.limit, shared, shared=True),
        Slice("asked for, claims", options.limit, claims=tuple(claims), shared=True),
    )
    return tuple(part for part in parts if part.labs or part.claims)


def planned(options: argparse.Namespace) -> Iterator[str]:
    """The slices, each with what it may take on a machine with one GPU that has recorded nothing yet."""
    here = {**machine(), "gpus": ["a GPU"]}
    edition = Edition(ROOT / "gallery" / "editions" / "visit")
    times = plan.Times.known(edition, here)
    total_s = CHECKS_S
    yield f"{CHECKS_S:5.0f} s            checks"
    for part in chosen(options):
        labs = {lab: times.lab(lab) for lab in part.labs}
        seconds = sum(labs.values()) if labs else claims_s(edition, here, part.claims)
        total_s += seconds
        what = ", ".join(f"{lab} {one_s:.0f}" for lab, one_s in labs.items()) or " ".join(part.claims)
        yield f"{seconds:5.0f} s  {total_s:6.0f} s  {part.what}: {what}"
    yield f"{total_s / 60:.0f} min in all; {options.limit:g} s a call. Estimates, not measurements."


def claims_s(edition: Edition, here: dict[str, Any], asked: tuple[str, ...]) -> float:
    """An estimate for claims whose ranks share the GPU, eight tests at a time."""
    from ddplab.recording.claims import about_nccl  # with what launches ranks, which may be missing there
    from ddplab.recording.items import tests_of

    os.environ[shared_gpu.ASKED] = "1"
    times = plan.Times.known(edition, here)
    only = about_nccl(ROOT) if asked == ("nccl",) else asked
    tests = [test for test in tests_of(ROOT) if {*test.claims} & {*only} and not test.is_recorded(edition, here)]
    return plan.seconds_of([test for test in tests if test.id not in times.on_cpu], times, 8)


def unknown_claims(asked: Sequence[str]) -> list[str]:
    """Those that no test proves; nothing if a package is missing that `check` will name."""
    if asked in ((), ["nccl"]) or importlib.util.find_spec("cloudpickle") is None:
        return []
    from ddplab.recording.items import proofs_of

    known = {claim for proof in proofs_of(ROOT) for claim in proof.claims}
    return [claim for claim in asked if claim not in known]


def stay(visit: Visit) -> None:
    """Hold the GPU's device file open: the driver then stays initialized between processes; no setting changes."""
    try:
        os.open("/dev/nvidia0", os.O_RDONLY)
    except OSError as error:
        visit.say(f"/dev/nvidia0 cannot be held open ({error.strerror}): each process may initialize the driver")


def stopped(*_: object) -> None:
    """End in good order, which takes some seconds: a second signal changes nothing."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def everything(visit: Visit, options: argparse.Namespace) -> int:
    """Checks and slices; the exit status."""
    stay(visit)
    names: list[str] = []
    left = False
    try:
        name = check(visit, whole=options.call == "first")
        names.append(name)
        if (default := ROOT / "gallery/editions/cpu-gloo").exists():  # its times are the recorder's estimates
            shutil.copytree(default, EDITIONS / default.name, dirs_exist_ok=True)
        if options.nccl and (found := other_nccl(visit)):
            path, version = found
            names.append(f"{name}-nccl{version}")
            if can_share(visit, LD_PRELOAD=path):
                left |= record(visit, names[-1], SHARED, options, LD_PRELOAD=path, DDPLAB_SHARE_GPU="1")
        shares: bool | None = None
        for part in chosen(options):
            if part.shared and shares is None:
                shares = visit.left_s() > LEAST_S and can_share(visit)
            if part.claims and not shares:
                visit.say(f"passed over: {part.what}")
                left = True
                continue
            left |= record(visit, name, part, options, DDPLAB_SHARE_GPU=str(int(part.shared and bool(shares))))
    except Stop as stop:
        visit.say(f"STOP: {stop}")
        return stop.status
    except KeyboardInterrupt:
        visit.say("stopped from outside; what was recorded is in the archive")
        return 128 + signal.SIGINT
    finally:
        visit.end()
        failed = tell_the_end(visit, names)
    return LEFT if left else FAILED if failed else 0


def tell_the_end(visit: Visit, names: Iterable[str]) -> bool:
    """The table of each edition, and what comes back; whether something failed."""
    failed = False
    for name in names:
        try:
            lines = list(table(Edition(EDITIONS / name)))
        except DamagedError as problem:
            lines = [f"FAILED {problem}"]
        failed |= any("  FAILED " in line for line in lines)
        visit.tell("\n".join(["", f"{name}:", *lines]))
    visit.tell("\n".join(["", f"{visit.out}:", *what_comes_back(visit.out)]))
    archives = " and ".join(f"{name}.zip" for name in names) or "nothing"
    visit.say(f"done; take {visit.out} home: `ddplab edition unpack` reads {archives}; `visit.py again` goes on here")
    return failed


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, and visit."""
    parser = argparse.ArgumentParser(
        prog="visit.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("call", nargs="?", choices=("first", "again"), default="first", help="first: with all checks")
    parser.add_argument("--plan", action="store_true", help="print the slices and their estimates; run nothing")
    parser.add_argument("--limit", type=float, default=400, metavar="S", help="end within S seconds (400)")
    parser.add_argument("--labs", nargs="+", metavar="ID", help="these labs, and afresh")
    parser.add_argument("--claims", nargs="+", metavar="ID", help="these claims, and afresh; nccl: those of NCCL")
    parser.add_argument("--lab-limit", type=float, default=75, metavar="S", help="of one lab (75)")
    parser.add_argument("--launch-limit", type=float, default=40, metavar="S", help="of one launch (40)")
    parser.add_argument("--nccl", action="store_true", help="two ranks on one GPU under .nccl/libnccl.so.2.xz, too")
    parser.add_argument("--out", type=Path, default=os.environ.get("OUT") or None, help="folder of results ($OUT)")
    options = parser.parse_args(arguments)
    if unknown := [lab for lab in options.labs or () if lab not in scripts()]:
        parser.exit(2, f"visit.py: there is no lab {', '.join(map(repr, unknown))}; see gallery/\n")
    if unknown := unknown_claims(options.claims or ()):
        parser.exit(2, f"visit.py: there is no claim {', '.join(map(repr, unknown))}; see tests/claims/\n")
    for name in ("limit", "lab_limit", "launch_limit"):
        if not getattr(options, name) > 0:
            parser.exit(2, f"visit.py: --{name.replace('_', '-')}: give a positive number of seconds\n")
    if options.plan:
        print("\n".join(planned(options)))
        return 0
    if not options.out:
        parser.exit(2, "visit.py: set OUT, or give --out: the folder of what comes back\n")

    for number in SIGNALS:
        signal.signal(number, stopped)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # faults that are wanted end ranks by SIGABRT
    return everything(Visit(Path(options.out), options.limit), options)


if __name__ == "__main__":
    sys.exit(main())
