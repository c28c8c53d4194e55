"""`ddplab tune-buckets`: what it measures on real ranks, what it advises, and how it refuses."""

import contextlib
import json
import math
import os
import pty
import random
import re
import signal
import subprocess
import sys
import textwrap
import time
from statistics import median

import psutil
import pytest
import torch
from torch import nn

from ddplab import cli
from ddplab.buckets import DEFAULT_CAP_BYTES, DEFAULT_FIRST_CAP_BYTES, MIB
from ddplab.cli_tune_buckets import as_text
from ddplab.costmodel import Link, bucketed, equal_layers, simulate_step
from ddplab.tuning import LEAST_ROUNDS, _copied, advise, choose, fitted, make_plans, median_interval
from tools import free_port, refused

KIB = 1024
LAYERS = """\
    import torch
    from torch import nn
    from ddplab.sleeping import SleepingLayers

    def build():  # six gradients of 64 KiB, each ready 20 ms after the one before it
        return SleepingLayers(6, 64 * 1024, 0.001, 0.020), torch.ones(1)
"""
QUICK = """\
    import os, sys, torch
    from torch import nn

    def build():
        return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.ones(4, 8)
"""
LARGER = QUICK.replace("8", "256")  # where caps make a difference


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module into the current folder, which is no folder of Python's path."""
    monkeypatch.chdir(tmp_path)

    def write(source, name="mine"):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        return f"{name}:build"

    return write


def asked(capsys, *arguments):
    """The exit code and what was printed."""
    code = cli.main(["tune-buckets", *map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


def answer(capsys, *arguments):
    code, found = asked(capsys, *arguments)
    assert code == 0, found
    return found


def answer_when_calm(capsys, calm, *arguments):
    """The answer of a run that nothing disturbed, of up to three: a user, too, asks again, and gives it more time."""
    seconds = 16
    for _ in range(3):
        code, found = asked(capsys, *arguments, "--seconds", seconds)
        if code == 2:
            seconds = int(re.fullmatch(r".* s are too short: .*; give --seconds (\d+)", found["error"])[1])
        elif calm(found):
            break
    assert code == 0, found
    return found


def command(*arguments):
    return [sys.executable, "-m", "ddplab", "tune-buckets", *map(str, arguments)]


# -- deciding -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 7, 8, 9, 15, 40, 200])
def test_the_interval_of_the_median_is_as_narrow_as_its_confidence_allows(n):
    values = list(range(n))
    random.Random(n).shuffle(values)
    low, high = median_interval(values)
    if low == -math.inf:
        assert high == math.inf
        assert 2 * 0.5**n > 0.01  # even the whole range is not sure enough
        return
    below, above = low, n - 1 - high  # values outside, on either side
    assert below == above
    outside = [2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n for k in (below, below + 1)]
    assert outside[0] <= 0.01 < outside[1]


def noisy(middle, spread, rounds=20, seed=0):
    rng = random.Random(seed)
    return [middle + spread * rng.uniform(-1, 1) for _ in range(rounds)]


def test_a_clear_optimum_is_recommended():
    found = advise(noisy(0.100, 0.002), {1.0: noisy(0.095, 0.002, seed=1), 4.0: noisy(0.080, 0.002, seed=2)})
    assert (found.cap_mb, found.verdict, found.best_mb) == (4.0, "clear", 4.0)
    assert 0.017 < found.low_s < found.gain_s < found.high_s < 0.023


def test_noise_larger_than_the_difference_keeps_the_default():
    found = advise(noisy(0.100, 0.030), {4.0: noisy(0.098, 0.030, seed=1)})
    assert (found.cap_mb, found.verdict, found.best_mb) == (None, "within noise", 4.0)
    assert found.low_s < 0 < found.high_s


def test_a_disturbance_that_hits_all_caps_of_a_round_hides_nothing():
    """The spread of each cap is ten times their difference; that of the differences is not."""
    drift = noisy(0.100, 0.050)
    found = advise(drift, {4.0: [s - 0.005 for s in drift]})
    assert (found.cap_mb, found.verdict) == (4.0, "clear")
    slower = [s + 0.0001 for s in drift]
    assert advise(drift, {4.0: [s - 0.005 for s in drift], 8.0: slower}).best_mb == 4.0
    shuffled = random.Random(3).sample(drift, len(drift))
    assert advise(drift, {4.0: [s - 0.005 for s in shuffled]}).verdict == "within noise"


@pytest.mark.parametrize("other_s", [0.120, 0.100, 0.0995])
def test_the_default_stays_where_nothing_is_a_percent_faster(other_s):
    found = advise(noisy(0.100, 1e-5), {4.0: noisy(other_s, 1e-5, seed=1)})
    assert (found.cap_mb, found.verdict) == (None, "default is best")


def test_few_rounds_are_never_clear():
    assert advise([0.2] * (LEAST_ROUNDS - 1), {4.0: [0.1] * (LEAST_ROUNDS - 1)}).verdict == "within noise"
    assert advise([0.2] * LEAST_ROUNDS, {4.0: [0.1] * LEAST_ROUNDS}).verdict == "clear"


def test_without_another_cap_the_default_is_best():
    assert advise([0.1], {}).verdict == "default is best"


GRADIENTS = equal_layers(40, MIB, 0.080)
LINK = Link(1e-3, 600 * MIB, 2, "link")


def test_plans_are_those_of_the_cost_model():
    plans = make_plans(GRADIENTS, None, LINK, 0.010, 0.090, [3, 3, 3.5])
    assert [plan.cap_mb for plan in plans[:3]] == [None, 3, 3.5]  # also where the buckets are the same
    for plan in plans:
        caps = (DEFAULT_CAP_BYTES, DEFAULT_FIRST_CAP_BYTES) if plan.cap_mb is None else (int(plan.cap_mb * MIB),)
        assert plan.step == simulate_step(0.010, GRADIENTS, bucketed(GRADIENTS, *caps), LINK, backward_s=0.090)
    grid = [tuple(plan.bucket_bytes) for plan in plans[3:]]
    assert len(set(grid)) == len(grid)
    assert {len(buckets) for buckets in grid} >= {40, 1}


def test_tensors_of_two_dtypes_fill_buckets_of_their_own():
    kinds = ["half" if i % 2 else "float" for i in range(40)]
    (plan,) = (p for p in make_plans(GRADIENTS, kinds, LINK, 0.0, 0.080, [20]) if p.cap_mb == 20)
    assert plan.bucket_bytes == [20 * MIB, 20 * MIB]
    assert plan.step.timeline[0].ready_s == pytest.approx(0.078)  # full only with the last but one gradient


def test_the_best_and_its_surroundings_are_chosen():
    plans = make_plans(GRADIENTS, None, LINK, 0.010, 0.080)
    best = min(plans[1:], key=lambda plan: plan.step.step_s)
    for most in range(2, 7):
        chosen = choose(plans, most=most)
        assert len(chosen) == most
        assert chosen[0].cap_mb is None
        assert best in chosen
    caps = [plan.cap_mb for plan in chosen[1:]]
    assert caps == sorted(caps)
    assert caps[0] < best.cap_mb < caps[-1]
    assert choose(plans[:1]) == plans[:1]
    assert [plan.cap_mb for plan in choose(make_plans(GRADIENTS, None, LINK, 0, 0.08, [7, 2]), [7, 2])] == [None, 2, 7]


@pytest.mark.parametrize("algorithm", ["ring", "link"])
def test_a_link_that_hardly_notices_bytes_is_all_latency(algorithm):
    sizes = [4 * KIB, 64 * KIB, MIB]
    link = fitted([(n, 0.060 - n * 1e-12) for n in sizes], 3, algorithm)
    for nbytes in sizes:
        assert link.seconds(nbytes) == pytest.approx(0.060, rel=1e-3)
    assert link.residual < 1e-3
    real = Link(1e-3, 1e9, 3, algorithm)
    assert fitted([(n, real.seconds(n)) for n in sizes], 3, algorithm).bytes_per_s == pytest.approx(1e9)


def test_copies_share_parameters_and_no_gradients():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model.tied = model[0].weight
    one, two = _copied(model), _copied(model)
    one(torch.randn(4, 3)).sum().backward()
    assert one.tied is one[0].weight
    assert one[0].weight.grad is not None
    assert (two[0].weight.grad, model[0].weight.grad) == (None, None)
    assert one[0].weight.data_ptr() == two[0].weight.data_ptr() == model[0].weight.data_ptr()
    assert not torch.equal(one[1].running_mean, model[1].running_mean)


# -- measuring ----------------------------------------------------------------------------------------


def test_small_buckets_are_found_on_a_link_that_is_hidden_behind_the_backward(module, capsys):
    """64 KiB travel as long as a layer computes: all at once double the backward, one by one hide but the last."""
    rate_gbit = 64 * KIB / 0.020 * 8 / 1e9

    def calm(found):
        advice = found["recommended"]["verdict"], found["recommended"]["bucket_cap_mb"]
        default_ms, small_ms, middle_ms = (seen["median_ms"] for seen in found["measured"])
        in_order = small_ms < middle_ms < default_ms
        return in_order and advice == ("clear", 0.05) and found["link"]["gbit_per_s"] == near

    near = pytest.approx(rate_gbit, rel=0.2)
    found = answer_when_calm(capsys, calm, module(LAYERS), "--caps", 0.05, 0.1, "--emulate-link", f"0,{rate_gbit}")
    default, small, middle = found["measured"]
    assert [seen["bucket_cap_mb"] for seen in found["measured"]] == [None, 0.05, 0.1]
    assert default["bucket_bytes"] == [6 * 64 * KIB]
    assert small["bucket_bytes"] == 6 * [64 * KIB]
    assert middle["bucket_bytes"] == 3 * [2 * 64 * KIB]
    assert small["predicted_ms"] < middle["predicted_ms"] < default["predicted_ms"]
    assert default["median_ms"] > 6 + 120 + 120  # the link is never early
    assert calm(found)
    assert found["link"]["emulated"] is True

    assert (found["ranks"], found["backend"], found["torch"]) == (2, "gloo", torch.__version__)
    assert [nbytes for _, nbytes in found["gradients"]] == 6 * [64 * KIB]
    ready_ms = [ms for ms, _ in found["gradients"]]
    assert ready_ms == sorted(ready_ms)
    assert found["forward_ms"] + ready_ms[-1] > 120  # a sleep that is late shortens the next one, so not each is 20
    assert found["backward_ms"] >= ready_ms[-1]
    for seen in found["measured"]:
        assert len(seen["steps_ms"]) == found["recommended"]["rounds"] >= LEAST_ROUNDS
        assert seen["median_ms"] == pytest.approx(median(seen["steps_ms"]))
        low, high = seen["middle_half_ms"]
        assert min(seen["steps_ms"]) <= low <= seen["median_ms"] <= high <= max(seen["steps_ms"])
    check_the_text(found)


def check_the_text(found):
    text = as_text(found)
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert rows["0.05"].endswith("<- recommended")
    assert rows["0.05"].split()[1] == "6"
    assert rows["default"].split()[1] == "1"
    assert "Clear: use bucket_cap_mb=0.05." in text
    assert "The link is emulated" in text
    best = found["recommended"]
    noise = {**best, "verdict": "within noise", "bucket_cap_mb": None, "low_ms": None, "high_ms": None}
    text = as_text({**found, "recommended": noise, "notes": []})
    assert re.search(r"^ *default .* <- recommended$", text, re.MULTILINE)
    assert "Within noise: keep the default." in text
    assert "bytes cost nothing that shows" in as_text({**found, "link": {**found["link"], "gbit_per_s": None}})
    text = as_text({**found, "recommended": {**noise, "verdict": "default is best", "gain_ms": -3.0}})
    assert re.search(r"Keep the default: .* 3.00 ms .* more than the default", " ".join(text.split()))


def test_latency_asks_for_few_buckets(module, capsys):
    """Six transfers of 60 ms are at least 360 ms; the default's one bucket takes half of that."""

    def calm(found):
        verdict, (default, small) = found["recommended"]["verdict"], found["measured"]
        late = found["link"]["latency_us"] > 59_000
        return late and verdict == "default is best" and default["median_ms"] < small["median_ms"]

    found = answer_when_calm(capsys, calm, module(LAYERS), "--caps", 0.05, "--emulate-link", "60000,10")
    default, small = found["measured"]
    assert (len(default["bucket_bytes"]), len(small["bucket_bytes"])) == (1, 6)
    assert small["median_ms"] > 360
    assert small["predicted_ms"] > 360
    assert default["predicted_ms"] < small["predicted_ms"]
    assert calm(found)
    assert found["recommended"]["bucket_cap_mb"] is None


@pytest.mark.parametrize(
    "returned",
    [
        "Net(), torch.ones(4, 8)",
        "Net(lambda y: y.sum()), torch.ones(4, 8)",
        "Net(lambda y: {'loss': y.sum(), 'logits': y}), [torch.ones(4, 8)]",
        "Net(lambda y: types.SimpleNamespace(loss=y.sum())), {'x': torch.ones(4, 8)}",
        "Net(lambda y: (y, y)), (1, torch.ones(4, 8)), lambda model, batch: model(batch[1])[0].sum()",
    ],
    ids=["a tensor", "a number", "a dictionary", "an object with a loss", "a loss function"],
)
def test_models_batches_and_losses_of_all_kinds(module, capsys, returned):
    source = """\
        import torch, types
        from torch import nn

        class Net(nn.Module):
            def __init__(self, last=lambda y: y):
                super().__init__()
                self.one, self.two, self.last = nn.Linear(8, 8), nn.Linear(8, 2), last
                self.two.bias.requires_grad_(False)
            def forward(self, x):
                self.kept = self.one(x)  # a copy of a module that has run would fail on it
                return self.last(self.two(self.kept))

        def build():
            print("noise")
            return RETURNED
    """
    found = answer(capsys, module(source.replace("RETURNED", returned)), "--seconds", 30, "--ranks", 3)
    assert found["ranks"] == 3
    assert found["link"]["emulated"] is False
    assert found["bytes"] == 4 * (64 + 8 + 16)  # not the frozen bias
    assert sorted(nbytes for _, nbytes in found["gradients"]) == [32, 64, 256]
    assert sum(found["measured"][0]["bucket_bytes"]) == found["bytes"]


def test_a_model_of_one_gradient_has_no_choice(module, capsys):
    source = QUICK.replace("nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))", "nn.Linear(8, 8, bias=False)")
    assert cli.main(["tune-buckets", module(source), "--seconds", "30"]) == 0
    assert "every cap gives the same buckets" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_plot(module, capsys, tmp_path, suffix):
    path = tmp_path / f"caps.{suffix}"
    assert cli.main(["tune-buckets", module(LARGER), "--seconds", "30", "--plot", str(path)]) == 0
    assert str(path) in capsys.readouterr().out
    content = path.read_bytes()
    if suffix == "png":
        assert content.startswith(b"\x89PNG")
    else:
        assert all(text in content.decode() for text in ("bucket_cap_mb (MiB)", "default, measured", "predicted"))


def test_help_shows_the_contract(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["tune-buckets", "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "return model, batch, loss" in text
    assert "torchrun --nproc-per-node 8 -m ddplab tune-buckets train:build" in text


# -- with a launcher, on a terminal, and when it is interrupted ---------------------------------------


def environment(**more):
    gone = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_STEP_NUM_TASKS")
    kept = {name: value for name, value in os.environ.items() if name not in gone}
    return {**kept, "OMP_NUM_THREADS": "1", **more}


def torchrun(*arguments):
    started = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    return subprocess.run(
        [*started, *command(*arguments)[2:]], capture_output=True, text=True, timeout=120, env=environment()
    )


def test_under_torchrun_rank_0_speaks(module):
    done = torchrun(module(QUICK.replace("return", "print('noise'); return")), "--seconds", 30, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)  # one object, and nothing of gloo or of the module
    assert (found["ranks"], found["backend"]) == (2, "gloo")
    assert done.stderr.count("noise") == 1


def test_under_torchrun_one_line_says_what_is_wrong(module):
    done = torchrun(module("def build(): return 3"))
    assert done.returncode != 0
    assert re.findall(r"^ddplab: .*", done.stderr, re.MULTILINE) == [
        "ddplab: mine:build returned a int; it must return (model, batch) or (model, batch, loss function)"
    ]


def test_under_srun(module):
    """The variables of ``srun --ntasks=2 python -m ddplab …`` on one node."""
    told = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "2"}
    told |= {"SLURM_JOB_ID": "77", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            command(module(QUICK), "--seconds", 30, "--json"),
            env=environment(**told, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank)),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=100)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert json.loads(said[0])["ranks"] == 2
    assert said[1] == ""


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"RANK": "0"}, "but WORLD_SIZE is ''"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "but RANK is 'x'"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "but MASTER_ADDR is ''"),
        ({"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, "1 rank has nobody"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, "--ranks 3, but 2 ranks"),
        (
            {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_NODES": "2"},
            "export MASTER_ADDR before srun",
        ),
    ],
)
def test_a_launcher_that_says_too_little_or_something_else(module, capsys, monkeypatch, told, words):
    for name in environment():
        if name.startswith(("SLURM_", "MASTER_", "LOCAL_")):
            monkeypatch.delenv(name)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, "")  # so that what the command sets is undone
        monkeypatch.delenv(name)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert words in refused(capsys, "tune-buckets", module(QUICK), "--ranks", 3)


def test_other_ranks_say_nothing_of_what_all_have(module, capsys, monkeypatch):
    told = {"RANK": "1", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as end:
        cli.main(["tune-buckets", module(QUICK)])
    assert (end.value.code, capsys.readouterr()) == (2, ("", ""))


def on_a_terminal(arguments, **more):
    """Run the command with a terminal for its error stream; return the exit code, output, and what was drawn."""
    own, theirs = pty.openpty()
    with subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=theirs, text=True, env=environment(TERM="xterm", **more)
    ) as process:
        os.close(theirs)
        drawn = b""
        with contextlib.suppress(OSError):  # the terminal's other end is closed
            while piece := os.read(own, 4096):
                drawn += piece
        printed = process.stdout.read()
    os.close(own)
    return process.returncode, printed, drawn.decode()


def test_a_bar_is_drawn_on_a_terminal_and_nowhere_else(module):
    target = module(LARGER)
    code, printed, drawn = on_a_terminal([target, "--seconds", 30])
    assert code == 0
    assert "\n" not in drawn
    for what in ("ready times", "all-reduces", r"\d+ caps"):
        assert re.search(rf"\r[#.]{{20}} +\d+ %  {what}, round \d+", drawn)
    shown = [int(share) for share in re.findall(r"(\d+) %", drawn)]
    assert shown == sorted(shown)
    assert (shown[0], shown[-1]) == (0, 100)
    assert drawn.endswith("\r\x1b[K")  # the line is empty again
    assert "#" not in printed
    done = subprocess.run(command(target, "--seconds", 30), capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("when", ["at the start", "in the function", "while it measures"])
def test_ctrl_c_ends_quietly_and_leaves_nothing(module, tmp_path, when):
    mark = tmp_path / "here"
    sleep = "time.sleep(60)" if when == "in the function" else "None"
    target = module(
        QUICK.replace("def build():", f"def build():\n        import time; open({str(mark)!r}, 'w'); {sleep}")
    )
    process = subprocess.Popen(
        command(target, "--seconds", 60),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until and process.poll() is None:
            if when == "at the start" and len(psutil.Process(process.pid).children()) == 2:
                time.sleep(1)  # one of them is the fork server, and imports torch
                break
            if when != "at the start" and mark.exists():
                time.sleep(0.0 if when == "in the function" else 2)
                break
            time.sleep(0.01)
        family = psutil.Process(process.pid).children(recursive=True)
        assert family
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        said = process.communicate(timeout=60)
        assert (process.returncode, said) == (130, ("", ""))
        _, alive = psutil.wait_procs(family, timeout=10)
        assert not alive
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# -- refusing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "MODULE:FUNCTION"),
        (["mine"], "'mine' is not MODULE:FUNCTION, as in train:build"),
        (["mine:"], "is not MODULE:FUNCTION"),
        ([":build"], "is not MODULE:FUNCTION"),
        (["mine:a b"], "is not MODULE:FUNCTION"),
        (["mine.py:build"], "give its module: mine:build"),
        (["./sub/mine.py:build"], "give its module: sub.mine:build"),
        (["mine:build", "--ranks", "1"], "1 rank has nobody to all-reduce with"),
        (["mine:build", "--ranks", "0"], "'0' is not a number of ranks"),
        (["mine:build", "--ranks", "two"], "'two' is not a number of ranks"),
        (["mine:build", "--seconds", "0"], "'0' is not a number of seconds"),
        (["mine:build", "--seconds", "nan"], "'nan' is not a number of seconds"),
        (["mine:build", "--caps", "5", "-1"], "'-1' is not a cap in MiB"),
        (["mine:build", "--caps"], "--caps"),
        (["mine:build", "--emulate-link", "5"], "'5' is not LATENCY_US,GBIT, as in 500,1"),
        (["mine:build", "--emulate-link", "-5,1"], "argument --emulate-link: expected one argument"),
        (["mine:build", "--emulate-link=-5,1"], "'-5' is not a latency"),
        (["mine:build", "--emulate-link", "5,0"], "'0' is not a rate"),
        (["mine:build", "--emulate-link", "5,x"], "'x' is not a rate"),
        (["mine:build", "--plot", "caps.gif"], "'caps.gif' does not end in .svg"),
        (["mine:build", "--plot", "nowhere/caps.svg"], "cannot be written"),
        (["mine:build", "--plots", "caps.svg"], "--plots"),
    ],
)
def test_options_that_cannot_be_used(module, capsys, arguments, words):
    module(QUICK)
    assert words in refused(capsys, "tune-buckets", *arguments)


BROKEN = {
    "a function that raises": (
        "def build(): raise ValueError('no\\ndata')",
        r"mine:build raised ValueError: no data \(line 1 of mine.py\)",
    ),
    "a function that leaves": ("def build(): raise SystemExit(3)", "mine:build raised SystemExit: 3"),
    "a module that raises": (
        "import json\njson.loads('')",
        r"importing mine raised JSONDecodeError.*line 2 of mine.py",
    ),
    "a module with an error": ("def build(: pass", "importing mine raised SyntaxError"),
    "a module that needs another": ("import nowhere", "importing mine raised ModuleNotFoundError: .*nowhere"),
    "another function": ("def make(): pass", "module mine has no function 'build'; it defines make"),
    "no function": ("build = 3", "module mine has no function 'build'; it defines none"),
    "an argument": ("def build(size): pass", "mine:build raised TypeError: .*size"),
    "nothing": ("def build(): pass", r"returned a NoneType; it must return \(model, batch\)"),
    "four things": ("def build(): return 1, 2, 3, 4", "returned a tuple of 4; it must"),
    "no model": ("def build(): return 1, 2", "returned a int as model"),
    "no parameters": ("from torch import nn\ndef build(): return nn.ReLU(), 1", "without a parameter that requires"),
    "a loss of no use": ("from torch import nn\ndef build(): return nn.Linear(1, 1), 1, 2", "a int as loss function"),
    "a forward that raises": (
        QUICK.replace("torch.ones(4, 8)", "torch.ones(4, 7)"),
        "the forward of mine:build raised RuntimeError: mat1 and mat2",
    ),
    "a tuple as output": (
        QUICK.replace("nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))", "nn.LSTM(8, 8)"),
        "the model returns a tuple, of which no loss can be made; return",
    ),
    "a loss of many numbers": (
        QUICK.replace("torch.ones(4, 8)", "torch.ones(4, 8), lambda model, batch: model(batch)"),
        r"a Tensor of shape \(4, 8\); it must be a tensor of one number",
    ),
    "a loss without a gradient": (
        QUICK.replace("torch.ones(4, 8)", "torch.ones(4, 8), lambda model, batch: model(batch).sum().detach()"),
        "has no gradient; is it detached",
    ),
    "another model's loss": (
        """\
        import torch
        from torch import nn
        model = nn.Linear(2, 2)
        def build(): return model, torch.ones(2), lambda _, batch: model(batch).sum()
        """,
        "no parameter of mine:build got a gradient; the loss must use the model that it is given",
    ),
    "an unused parameter": (
        QUICK.replace(
            "torch.ones(4, 8)", "torch.ones(4, 8), lambda model, batch: model.module[0](batch).sum()"
        ).replace("model.module", "model"),
        r"the loss does not use 1.weight, 1.bias; DDP would need find_unused_parameters=True",
    ),
    "sparse gradients": (
        "import torch\nfrom torch import nn\ndef build(): return nn.Embedding(4, 4, sparse=True), torch.tensor([1])",
        "weight has a sparse gradient",
    ),
    "another model on a rank": (
        QUICK.replace("nn.Linear(8, 8))", "nn.Linear(8, 8 + int(os.environ['RANK'])))"),
        "ranks 0 and 1 built models that differ in their parameters: .*1.weight",
    ),
    "a problem on one rank": (
        QUICK.replace("def build():", "def build():\n        assert os.environ['RANK'] == '0', 'no data'"),
        "on rank 1 only: mine:build raised AssertionError: no data",
    ),
    "a step that fails later": (
        QUICK.replace(
            "torch.ones(4, 8)", "torch.ones(4, 8), lambda m, b, n=[]: n.append(1) or m(b).sum() / (len(n) < 9 or 1 / 0)"
        ),
        "a forward raised ZeroDivisionError: division by zero",
    ),
    "a rank that dies": (
        QUICK.replace("def build():", "def build():\n        os.environ['RANK'] == '1' and os.kill(os.getpid(), 9)"),
        "rank 1 of 2 failed first: rank 1 was killed by SIGKILL",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_models_that_cannot_be_tuned(module, capsys, what):
    source, words = BROKEN[what]
    said = refused(capsys, "tune-buckets", module(source), "--seconds", 30)
    assert re.search(words, said), said
    assert "Traceback" not in said


def test_a_module_that_is_not_there(module, capsys, tmp_path):
    assert f"there is no module 'mine'; looked in {tmp_path}" in refused(capsys, "tune-buckets", "mine:build")
    assert "there is no module 'mine.deep'" in refused(capsys, "tune-buckets", module(QUICK).replace(":", ".deep:"))


def test_too_little_time_is_said_before_it_is_wasted(module, capsys):
    began = time.monotonic()
    said = refused(capsys, "tune-buckets", module(LAYERS), "--seconds", 1)
    assert time.monotonic() - began < 20
    asked = re.search(r"1 s are too short: .* give --seconds (\d+)", said)
    assert asked
    assert int(asked[1]) > 3  # thirty steps of 126 ms


def test_the_error_is_an_object_too(module, capsys):
    assert cli.main(["tune-buckets", module("build = 3"), "--json"]) == 2
    assert "has no function" in json.loads(capsys.readouterr().out)["error"]
