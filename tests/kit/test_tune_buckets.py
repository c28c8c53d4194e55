"""`ddplab tune-buckets`: what it measures on real ranks, what it advises, and how it refuses."""

import contextlib
import functools
import json
import os
import pty
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
from refusal import refused

from ddplab import cli, launch
from ddplab.cli.tune_report import as_text, draw
from ddplab.model.tuning import measure
from ddplab.model.tuning.measure import LEAST_ROUNDS
from ddplab.model.tuning.together import TuningError
from ddplab.model.tuning.tune import tune
from tools import PATIENCE_S, free_port

KIB = 1024
QUICK = """\
    import os, sys, torch
    from torch import nn

    def build():
        return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.ones(4, 8)
"""
LARGER = QUICK.replace("8", "256")  # where caps make a difference


def write(folder, source, name="mine"):
    """Write a module into a folder that is no folder of Python's path."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(textwrap.dedent(source))
    return f"{name}:build"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module into the current folder."""
    monkeypatch.chdir(tmp_path)
    return functools.partial(write, tmp_path)


def tuned(sources, caps_mb=(1.0,), emulate=None, seconds=600.0):
    """In a rank: the answer of each module in turn, or what is wrong with it; few rounds, whatever they tell."""
    measure.MOST_ROUNDS = LEAST_ROUNDS
    answers = []
    for folder in sources:
        try:
            answers.append(tune("mine:build", str(folder), caps_mb, seconds, emulate, None))
        except TuningError as error:
            answers.append(str(error))
        answers[-1] = answers[-1], getattr(sys.modules.pop("mine", None), "seen", None)
        sys.path.remove(str(folder))
    return answers


def command(*arguments):
    return [sys.executable, "-m", "ddplab", "tune-buckets", *map(str, arguments)]


# -- measuring ----------------------------------------------------------------------------------------


def test_a_sweep_on_a_link_that_is_emulated(tmp_path):
    """Six layers of a millisecond, and a link that takes as long for each: what holds however late a machine is."""
    source = """\
        import torch
        from ddplab.apparatus.sleeping import SleepingLayers

        def build():
            return SleepingLayers(6, 64 * 1024, 0.0001, 0.001), torch.ones(1)
    """
    write(tmp_path, source)
    rate = 64 * KIB / 0.001
    ((found, _),), _ = launch(tuned, 2, [tmp_path], (0.05, 0.1), (0.0, rate))
    default, small, middle = found["measured"]
    assert [seen["bucket_cap_mb"] for seen in found["measured"]] == [None, 0.05, 0.1]
    assert default["bucket_bytes"] == [6 * 64 * KIB]
    assert small["bucket_bytes"] == 6 * [64 * KIB]
    assert middle["bucket_bytes"] == 3 * [2 * 64 * KIB]
    assert min(default["steps_ms"]) > 0.6 + 6 + 6  # the layers are never early, and neither is the link
    assert min(small["steps_ms"]) > 0.6 + 6 + 1
    assert found["link"]["emulated"] is True
    assert all(took_ms / 1e3 >= nbytes / rate for nbytes, took_ms in found["link"]["samples"])

    assert (found["ranks"], found["backend"], found["torch"]) == (2, "gloo", torch.__version__)
    assert [nbytes for _, nbytes in found["gradients"]] == 6 * [64 * KIB]
    ready_ms = [ms for ms, _ in found["gradients"]]
    assert ready_ms == sorted(ready_ms)
    assert found["forward_ms"] + ready_ms[-1] > 6  # a sleep that is late shortens the next one, so not each is 1
    assert found["backward_ms"] >= ready_ms[-1]
    assert found["recommended"]["rounds"] == LEAST_ROUNDS
    for seen in found["measured"]:
        assert len(seen["steps_ms"]) == LEAST_ROUNDS
        assert seen["median_ms"] == pytest.approx(median(seen["steps_ms"]))
        low, high = seen["middle_half_ms"]
        assert min(seen["steps_ms"]) <= low <= seen["median_ms"] <= high <= max(seen["steps_ms"])
    check_the_text(found)


def check_the_text(found):
    advice = {"bucket_cap_mb": 0.05, "best_bucket_cap_mb": 0.05, "verdict": "clear", "gain_ms": 3.0}
    clear = {**found["recommended"], **advice, "low_ms": 2.5, "high_ms": 3.5}
    text = as_text({**found, "recommended": clear})
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert rows["0.05"].endswith("<- recommended")
    assert rows["0.05"].split()[1] == "6"
    assert rows["default"].split()[1] == "1"
    assert "Clear: use bucket_cap_mb=0.05." in text
    assert "The link is emulated" in text
    noise = {**clear, "verdict": "within noise", "bucket_cap_mb": None, "low_ms": None, "high_ms": None}
    text = as_text({**found, "recommended": noise, "notes": []})
    assert re.search(r"^ *default .* <- recommended$", text, re.MULTILINE)
    assert "Within noise: keep the default." in text
    assert "more bytes take no longer" in as_text({**found, "link": {**found["link"], "gbit_per_s": None}})
    text = as_text({**found, "recommended": {**noise, "verdict": "default is best", "gain_ms": -3.0}})
    assert re.search(r"Keep the default: .* 3.00 ms .* more than the default", " ".join(text.split()))


def test_models_batches_and_losses_of_all_kinds(tmp_path):
    kinds = {
        "a tensor": "Net(), torch.ones(4, 8)",
        "a number": "Net(lambda y: y.sum()), torch.ones(4, 8)",
        "a dictionary": "Net(lambda y: {'loss': y.sum(), 'logits': y}), [torch.ones(4, 8)]",
        "an object with a loss": "Net(lambda y: types.SimpleNamespace(loss=y.sum())), {'x': torch.ones(4, 8)}",
        "a loss function": "Net(lambda y: (y, y)), (1, torch.ones(4, 8)), lambda m, batch: m(batch[1])[0].sum()",
    }
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
    for kind, returned in kinds.items():
        write(tmp_path / kind, source.replace("RETURNED", returned))
    for answers in zip(*launch(tuned, 2, [tmp_path / kind for kind in kinds]), strict=True):
        for found, _ in answers:  # of each rank
            assert found["ranks"] == 2
            assert found["link"]["emulated"] is False
            assert found["bytes"] == 4 * (64 + 8 + 16)  # not the frozen bias
            assert sorted(nbytes for _, nbytes in found["gradients"]) == [32, 64, 256]
            assert sum(found["measured"][0]["bucket_bytes"]) == found["bytes"]


def test_the_model_stays_as_it_was_and_its_copies_share_its_parameters(tmp_path):
    """Many copies fit beside each other; what a forward or a backward changes is their own."""
    source = """\
        import torch
        from torch import nn

        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        model.tied = model[0].weight
        addresses = set()

        class seen:
            def now():
                left = [p.grad for p in model.parameters()], model[1].running_mean.tolist(), len(addresses)
                return *left, model.tied is model[0].weight

        def loss(copy, batch):
            inner = getattr(copy, "module", copy)
            assert inner.tied is inner[0].weight
            addresses.add(inner[0].weight.data_ptr())
            return copy(batch).sum()

        def build():
            return model, torch.randn(4, 8), loss
    """
    write(tmp_path, source)
    for ((_, seen),) in launch(lambda: [(found, state.now()) for found, state in tuned([tmp_path])], 2):
        assert seen == ([None] * 4, [0.0] * 8, 1, True)


def test_the_command_measures_writes_and_draws(module, capsys, tmp_path):
    """One object, one picture, and nothing on the error stream, which is no terminal."""
    path = tmp_path / "caps.svg"
    options = ["--seconds", str(PATIENCE_S), "--caps", "0.25", "--json", "--plot", str(path)]
    assert cli.main(["tune-buckets", module(LARGER), *options]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert [seen["bucket_cap_mb"] for seen in found["measured"]] == [None, 0.25]
    assert err == ""
    drawn = path.read_text()
    assert all(text in drawn for text in ("bucket_cap_mb (MiB)", "default, measured", "predicted"))
    draw(found)[0].savefig(tmp_path / "caps.png")
    assert (tmp_path / "caps.png").read_bytes().startswith(b"\x89PNG")


# -- with a launcher, on a terminal, and when it is interrupted ---------------------------------------


def environment(**more):
    gone = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_STEP_NUM_TASKS")
    kept = {name: value for name, value in os.environ.items() if name not in gone}
    return {**kept, "OMP_NUM_THREADS": "1", **more}


def torchrun(*arguments):
    started = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    return subprocess.run(
        [*started, *command(*arguments)[2:]], capture_output=True, text=True, timeout=PATIENCE_S, env=environment()
    )


def test_under_torchrun_rank_0_speaks(module):
    noisy = module(QUICK.replace("return", "print('noise'); return"))
    done = torchrun(noisy, "--seconds", PATIENCE_S, "--caps", 1, "--json")
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
            command(module(QUICK), "--seconds", PATIENCE_S, "--caps", 1, "--json"),
            env=environment(**told, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank)),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=PATIENCE_S)[0] for rank in ranks]
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
        (
            {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
            "1 rank all-reduces nothing",
        ),
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


def test_a_bar_is_drawn_on_a_terminal(module):
    code, printed, drawn = on_a_terminal([module(LARGER), "--seconds", PATIENCE_S, "--caps", 0.25])
    assert code == 0
    assert "\n" not in drawn
    for what in ("ready times", "all-reduces", r"\d+ caps"):
        assert re.search(rf"\r[#.]{{20}} +\d+ %  {what}, round \d+", drawn)
    shown = [int(share) for share in re.findall(r"(\d+) %", drawn)]
    assert shown == sorted(shown)
    assert (shown[0], shown[-1]) == (0, 100)
    assert drawn.endswith("\r\x1b[K")  # the line is empty again
    assert "#" not in printed


def imports_torch(process):
    """Whether a process that this one has started, the fork server, has come to torch."""
    try:
        return any("libtorch" in library.path for child in process.children() for library in child.memory_maps())
    except psutil.Error:
        return False


def test_ctrl_c_ends_quietly_and_leaves_nothing(module, tmp_path):
    """While the fork server imports torch, in the reader's function, and while it measures; all three side by side."""
    source = """\
        import time, torch
        from torch import nn

        def loss(model, batch, calls=[]):
            calls.append(1)
            if len(calls) == 20:
                open("measures", "w").close()
            if len(calls) > 20:
                time.sleep(4321)  # or it would have measured all before the signal comes
            return model(batch).sum()

        def build():
            return nn.Linear(8, 8), torch.ones(4, 8), loss

        def stay():
            open("in the function", "w").close()
            time.sleep(600)
    """
    target = module(source)
    events = {
        "in the function": (target.replace("build", "stay"), lambda _: (tmp_path / "in the function").exists()),
        "measures": (target, lambda _: (tmp_path / "measures").exists()),
        "at the start": (target, imports_torch),
    }
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with contextlib.ExitStack() as stack:
        waiting = {}
        for when, (what, happened) in events.items():
            process = subprocess.Popen(command(what, "--seconds", 600), env=environment(), **pipes)
            stack.callback(process.wait)
            stack.callback(end_all, process)
            waiting[when] = process, happened
        while waiting:
            for when, (process, happened) in list(waiting.items()):
                assert process.poll() is None, (when, process.communicate())
                if happened(psutil.Process(process.pid)):
                    del waiting[when]
                    family = psutil.Process(process.pid).children(recursive=True)
                    assert family
                    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
                    assert (process.communicate(timeout=PATIENCE_S), process.returncode) == (("", ""), 130), when
                    assert not psutil.wait_procs(family, timeout=PATIENCE_S)[1], when
            time.sleep(0.01)


def end_all(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


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
        (["mine:build", "--ranks", "1"], "1 rank all-reduces nothing"),
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
        (["mine:build", "--plot", "nowhere/caps.svg"], "cannot write 'nowhere/caps.svg'"),
        (["mine:build", "--plots", "caps.svg"], "--plots"),
    ],
)
def test_options_that_cannot_be_used(module, capsys, arguments, words):
    module(QUICK)
    assert words in refused(capsys, "tune-buckets", *arguments)


BROKEN = {
    "a function that raises": (
        "def build(): raise ValueError('no\\ndata')",
        r"^(ddplab: )?mine:build raised ValueError: no data \(line 1 of mine.py\)",
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
    "no model": ("def build(): return 1, 2", "returned a int as the model"),
    "no parameters": ("from torch import nn\ndef build(): return nn.ReLU(), 1", "without a parameter that requires"),
    "a loss of no use": (
        "from torch import nn\ndef build(): return nn.Linear(1, 1), 1, 2",
        "a int as the loss function",
    ),
    "a forward that raises": (
        QUICK.replace("torch.ones(4, 8)", "torch.ones(4, 7)"),
        "the forward of mine:build raised RuntimeError: mat1 and mat2",
    ),
    "a tuple as output": (
        QUICK.replace("nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))", "nn.LSTM(8, 8)"),
        "the model returns a tuple, which is not a loss; return",
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
        r"the loss does not use 1.weight, 1.bias; freeze these parameters",
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


ALONE = ["a rank that dies", "a function that raises"]


@pytest.fixture(scope="module")
def problems(tmp_path_factory):
    """What each model hears that leaves the ranks together, all in the same ranks."""
    folder, sources = tmp_path_factory.mktemp("broken"), {what: BROKEN[what][0] for what in BROKEN if what not in ALONE}
    for what, source in sources.items():
        write(folder / what, source)
    first, second = launch(tuned, 2, [folder / what for what in sources], quiet=True)
    assert first == second
    return {what: answer for what, (answer, _) in zip(sources, first, strict=True)}


@pytest.mark.parametrize("what", [what for what in BROKEN if what not in ALONE])
def test_models_that_cannot_be_tuned(what, problems):
    assert re.search(BROKEN[what][1], problems[what]), problems[what]


@pytest.mark.parametrize("what", ALONE)
def test_the_command_says_it_in_one_line(module, capsys, what):
    source, words = BROKEN[what]
    said = refused(capsys, "tune-buckets", module(source), "--seconds", PATIENCE_S)
    assert re.search(words, said), said
    assert "Traceback" not in said


def test_a_model_of_one_gradient_has_no_choice(tmp_path):
    write(tmp_path, QUICK.replace("nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))", "nn.Linear(8, 8, bias=False)"))
    ((found, _),), *_ = launch(tuned, 3, [tmp_path], ())
    assert found["ranks"] == 3
    assert "every cap gives the same buckets" in as_text(found)


def test_a_module_that_is_not_there(module, capsys, tmp_path):
    assert f"there is no module 'mine'; looked in {tmp_path}" in refused(capsys, "tune-buckets", "mine:build")
    assert "there is no module 'mine.deep'" in refused(capsys, "tune-buckets", module(QUICK).replace(":", ".deep:"))


def test_too_little_time_is_said_before_it_is_wasted(tmp_path):
    """After the two steps that show whether the model works at all."""
    source = """\
        import time, torch
        from torch import nn

        seen = []

        def loss(model, batch):
            seen.append("a step")
            time.sleep(0.1)
            return model(batch).sum()

        def build():
            return nn.Linear(8, 8), torch.ones(4, 8), loss
    """
    write(tmp_path, source)
    for ((answer, seen),) in launch(tuned, 2, [tmp_path], (1.0,), None, 1.0, quiet=True):
        asked = re.search(r"--seconds 1 is too short: .* use --seconds (\d+)", answer)
        assert int(asked[1]) > 3  # thirty steps of 100 ms
        assert len(seen) == 2


def test_the_error_is_an_object_too(module, capsys):
    assert cli.main(["tune-buckets", module("build = 3"), "--json"]) == 2
    assert "has no function" in json.loads(capsys.readouterr().out)["error"]
