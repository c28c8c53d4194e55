"""`ddplab diagnose`: what failed first comes first, whatever the log's form and size."""

import gzip
import json
import lzma
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import textwrap
import zipfile

import pytest

from ddplab import cli
from ddplab.diagnose import Diagnosis, Engine, diagnose, entries
from ddplab.diagnose.lines import read_line
from ddplab.diagnose.ranking import Answer
from ddplab.diagnose.reading import ranks_of
from ddplab.diagnose.search import Search
from ddplab.diagnose.unwrap import unwrap
from diagnose_logs import BOOK, CAUSE, FOLLOWED, KNOWN, LOGS, OWN, SAMPLES, WRAPPED, answer, answers, cut
from tools import PATIENCE_S


def answers_to(log: str) -> list[Diagnosis]:
    return answers(KNOWN, (f"{log}.log", dict(LOGS)[f"{log}.log"]))


# -- ranking ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "first", "rank", "line", "followed"),
    [
        # (a) one rank raises; the others lose it, and torchrun tells of it: runs of torch 2.13 on gloo
        ("user", "python-exception", 2, 7, ["gloo-closed", "torchrun-child-failed"]),
        ("userrec", "python-exception", 2, 10, ["gloo-closed", "torchrun-child-failed"]),
        ("tee", "python-exception", 2, 7, ["gloo-closed", "torchrun-child-failed"]),
        # a rank dies without a message
        ("kill", "exit-killed", 2, 77, ["gloo-closed", "torchrun-child-failed"]),
        ("segv", "exit-segfault", 2, 77, ["gloo-closed", "torchrun-child-failed"]),
        ("exit", "exit-abort", 2, 78, ["gloo-closed", "torchrun-child-failed"]),
        # (b) the watchdog of seven ranks, since one ran out of memory; and the files one after the other
        ("oom_then_watchdog", "memory-cuda", 3, 58, ["nccl-watchdog"]),
        ("concatenated", "memory-cuda", 3, 16, ["nccl-watchdog"]),
        ("concatenated_causes", "memory-cuda", 0, 2, []),
        # (c) the summary alone
        ("summary_only_killed", "exit-killed", 2, 33, ["torchrun-child-failed"]),
        ("summary_only_11", "exit-segfault", 2, 33, ["torchrun-child-failed"]),
        ("summary_only_6", "exit-abort", 2, 33, ["torchrun-child-failed"]),
        ("summary_only_7", "exit-bus-error", 2, 33, ["torchrun-child-failed"]),
        ("summary_only_15", "exit-terminated", 2, 33, ["torchrun-child-failed"]),
        ("summary_only_1", "exit-code", 2, 33, ["torchrun-child-failed"]),
        # (d) a warning that came earlier is not the cause
        ("harmless", "python-exception", 1, 21, []),
        ("harmless_only", "unused-search", None, 1, []),
        # tracebacks
        ("interleaved", "python-exception", 0, 13, []),
        ("interleaved_no_rank", "python-exception", None, 13, []),
        ("chain", "python-exception", 0, 14, []),
        ("finally", "python-exception", 0, 7, []),
        ("data_loader", "python-exception", 0, 11, []),
        ("spawn", "python-exception", 1, 16, []),
        ("source_line", "python-exception", 0, 4, []),
        ("interrupted", "stopped", None, 7, []),
        ("thread", "python-exception", None, 13, []),
        ("thread_only", "python-exception", None, 8, []),
        ("rich", "python-exception", None, 10, []),
        # forms of a log
        ("glued", "nccl-watchdog", 7, 1, []),
        ("progress_bar", "cuda-error", None, 8, []),
        ("windows_ansi", "python-exception", 2, 7, []),
        ("wide", "python-exception", 2, 7, []),
        ("broken_bytes", "python-exception", 2, 8, []),
        ("srun", "python-exception", 3, 11, ["torchrun-child-failed"]),
        ("kubernetes", "python-exception", 5, 7, []),
        ("compose", "python-exception", 1, 7, []),
        ("emptied", "python-exception", None, 7, []),
        ("nearby", "address-in-use", None, 51, []),
        ("nearby_same_rank", "address-in-use", 0, 153, []),
    ],
)
def test_what_failed_first_comes_first(log, first, rank, line, followed):
    best = answers_to(log)[0]
    assert (best.id, best.rank, best.evidence[0].line_number) == (first, rank, line)
    assert [one.id for one in best.followed] == followed


@pytest.mark.parametrize("log", ["nothing", "empty", "nearby_too_far"])
def test_what_is_not_known_is_not_guessed(log):
    assert answers_to(log) == []


@pytest.mark.core
def test_equal_exceptions_count_as_one():
    best, *others = answers_to("interleaved_no_rank")
    assert (best.count, others) == (2, [])
    assert "ValueError: bad label 7" in best.title
    assert "`/home/me/train.py:12 in main`" in best.cause


@pytest.mark.core
def test_the_exception_behind_a_wrapper_is_named():
    assert "KeyError: 9" in answers_to("data_loader")[0].title
    assert "`/home/me/data.py:9 in __getitem__`" in answers_to("data_loader")[0].cause
    assert "raised while `KeyError` was being handled" in answers_to("chain")[0].cause


def test_an_exception_on_the_rank_that_torchrun_names_comes_before_a_later_cause_of_another():
    log = (OWN / "logs" / "user.log").read_text()
    late = "[rank1]: CUDA out of memory. Tried to allocate 20 MiB\n"
    assert [one.id for one in diagnose((log + late).splitlines(), KNOWN)][:2] == ["python-exception", "memory-cuda"]
    assert [one.id for one in diagnose((late + log).splitlines(), KNOWN)][:2] == ["memory-cuda", "python-exception"]


def test_an_uncaught_exception_comes_before_a_later_cause_of_other_ranks():
    boom = '[rank3]: Traceback (most recent call last):\n[rank3]:   File "a.py", line 1, in f\n[rank3]: KeyError: 1\n'
    late = "[rank0]: EADDRINUSE\n"
    assert diagnose((boom + late).splitlines(), KNOWN)[0].id == "python-exception"
    logged = boom.replace("[rank3]", "[default3]")  # it may have been caught, and only logged
    assert diagnose((logged + late).splitlines(), KNOWN)[0].id == "address-in-use"
    assert diagnose((boom + late + late.replace("0", "3")).splitlines(), KNOWN)[0].id == "address-in-use"


@pytest.mark.parametrize(
    ("log", "first", "rank"),
    [
        ("no_prefix_then_watchdog", "python-exception", None),
        ("tee_then_watchdog", "python-exception", 1),
        ("caught_then_watchdog", "nccl-watchdog-timeout", 0),  # its first frame is not where a program begins
    ],
)
def test_an_exception_that_left_the_program_comes_before_the_timeouts_of_other_ranks(log, first, rank):
    lines = (OWN / "logs" / f"{log}.log").read_text().splitlines()
    best, *_ = diagnose(lines, entries())
    assert (best.id, best.rank) == (first, rank)


def test_what_the_scheduler_says_after_an_exception_is_not_its_cause():
    log = (OWN / "logs" / "scheduler.log").read_text()
    assert [one.id for one in diagnose(log.splitlines(), entries())] == ["python-exception", "slurm-cancelled"]
    alone = log[log.index("srun: error") :]
    assert diagnose(alone.splitlines(), entries())[0].id == "slurm-cancelled"


@pytest.mark.parametrize(
    ("explains", "explained", "order"),
    [
        ("nccl-watchdog", "cuda-error", ["nccl-watchdog", "cuda-error"]),  # a consequence, a later generic message
        ("unused-search", "nccl-watchdog", ["nccl-watchdog", "unused-search"]),  # a warning, what was found
    ],
)
def test_what_explains_another_message_is_the_cause(tmp_path, explains, explained, order):
    for path in (OWN / "entries").iterdir():
        (tmp_path / path.name).write_text(path.read_text())
    path = tmp_path / f"{explains}.toml"
    path.write_text(path.read_text().replace("\n[[match]]", f'explains = ["{explained}"]\n\n[[match]]', 1))
    log = "\n".join(KNOWN[name].samples[0] for name in order)
    (best,) = diagnose(log.splitlines(), entries(tmp_path))
    assert (best.id, [one.id for one in best.followed]) == (explains, [explained])


def test_a_warning_comes_behind_what_was_found():
    log = KNOWN["nccl-watchdog"].samples[0] + "\n" + KNOWN["unused-search"].samples[0]
    assert [one.id for one in diagnose(log.splitlines(), KNOWN)] == ["nccl-watchdog", "unused-search"]


def test_ignored_exceptions_and_wrappers_are_no_diagnosis():
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\n{}: x\n'
    assert diagnose(("Exception ignored in: <f>\n" + trace.format("ValueError")).splitlines(), {}) == []
    assert diagnose(trace.format("a.b.ChildFailedError").splitlines(), {}) == []


def test_an_entry_is_the_first_answer_to_its_samples():
    for name, sample in SAMPLES:
        best, *_ = answers(BOOK, (name, sample))
        assert f"{best.id}.log" == name, sample.decode()


def test_what_a_family_prints_follows_from_the_cause_above_it():
    assert len(FOLLOWED) > 15
    for name, log in FOLLOWED:
        (best,) = answers(BOOK, (name, log))
        assert best.id == CAUSE
        assert name in [f"{other.id}.log" for other in best.followed]


# -- what nothing is known of -------------------------------------------------------------------------


def said(text: str) -> Answer:
    return answer(KNOWN, ("a.log", text.encode()))


@pytest.mark.parametrize(
    ("log", "kind", "title"),
    [
        ("", "empty", "The log is empty"),
        (" \n\n", "empty", "The log is empty"),
        ("epoch 1\nall is well\n", "no-error", "The log has no error"),
        ("n1:1:2 [0] NCCL INFO Using network Socket\n", "hang", "in NCCL's initialization"),
        ("[INFO] Starting elastic_operator\n", "hang", "while the processes look for each other"),
        (
            "Epoch 1:   9%|▉   | 9/100 [00:01<00:09]\r 11%|█   | 11/100 [00:01<00:08]",
            "hang",
            "progress bar is not full",
        ),
        ("100%|████| 100/100 [00:10<00:00]\n", "no-error", "The log has no error"),
        ("step 1\nSaving the checkpoint ...\n", "hang", "something was announced"),
    ],
)
def test_an_empty_log_one_without_an_error_and_a_hang_are_told_apart(log, kind, title):
    answered = said(log)
    assert (answered.diagnoses, answered.suspect, answered.nothing.kind) == ([], None, kind)
    assert title in answered.nothing.title
    assert len({*answered.nothing.collect}) == len(answered.nothing.collect) >= 3


def test_a_hang_in_the_initialization_of_nccl_names_its_ranks():
    line = "n1:{0}:{0} [{0}] NCCL INFO ncclCommInitRank comm 0x1 rank {0} nranks 4 cudaDev {0} - Init {1}\n"
    log = "".join(line.format(rank, "START") for rank in range(4)) + line.format(2, "COMPLETE")
    assert "was not completed on ranks 0, 1, 3." in said(log).nothing.text


def test_a_notice_is_no_diagnosis(capsys, tmp_path):
    log = tmp_path / "train.log"
    log.write_text("UserWarning: The `check_reduction` argument in DDP is deprecated\nepoch 1\n")
    code, printed, _ = run(capsys, log)
    assert code == 1
    assert "The log has no error" in printed
    assert "py-spy dump" in printed
    assert "(ddp-notice, line 1)" in " ".join(printed.split())


@pytest.mark.parametrize(
    ("log", "first", "line", "words"),
    [
        ("x\nmylib.OddError: boom\n", "python-exception", 2, "last line that looks like an error"),
        ("RuntimeError: boom\nworse\nKeyError: 3\nbye\n", "python-exception", 3, "no such key"),
        (
            '[rank2]: Traceback (most recent call last):\n[rank2]:   File "a.py", line 1, in f\n',
            "last-error",
            2,
            "inside a",
        ),
        ("a.sh: line 3: torchrun: command not found\n", "last-error", 1, "`which torchrun python"),
        ("2026-11-21 10:00:00 ERROR train: no data for fold 3\n", "last-error", 1, "without a traceback"),
        ("[2026-11-21 10:00:00] INFO no errors\nfatal: not a git repository\n", "last-error", 2, "without a traceback"),
    ],
)
def test_the_last_line_that_looks_like_an_error_is_the_answer_when_nothing_is_known(log, first, line, words):
    (best,) = said(log).diagnoses
    assert (best.id, best.evidence[0].line_number) == (first, line)
    assert words in best.why + best.cause + best.fix


# -- facts --------------------------------------------------------------------------------------------


FULL = "CUDA out of memory. Tried to allocate 2 MiB"


def timeout(rank: int, number: int = 7, operation: str = "ALLREDUCE", ms: int = 600_000, size: int = 64) -> str:
    work = f"WorkNCCL(SeqNum={number}, OpType={operation}, NumelIn={size}, NumelOut={size}, Timeout(ms)={ms})"
    front = f"[rank{rank}]:[E1121 10:00:0{rank % 10}.000000 ProcessGroupNCCL.cpp:632] [PG ID 0 Rank {rank}]"
    return f"{front} Watchdog caught collective operation timeout: {work} ran for {ms} milliseconds.\n"


def status(rank: int, enqueued: int, completed: int) -> str:
    front = (
        f"[rank{rank}]:[E1121 10:00:09.000000 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
    )
    return f"{front} failure detected, last enqueued work: {enqueued}, last completed work: {completed}\n"


@pytest.mark.parametrize(
    ("log", "rank", "why"),
    [
        ([timeout(0), timeout(1), timeout(3)], 2, "the only one of 4 ranks that reports no time-out"),
        ([timeout(0), timeout(1), timeout(2, 7, "BROADCAST")], 2, "it alone waits in BROADCAST of 64 elements"),
        ([timeout(0), timeout(1), timeout(2, size=65)], 2, "it alone waits in ALLREDUCE of 65 elements"),
        ([timeout(0), timeout(1, 6), timeout(2)], 1, "it waits in collective #6, the others in #7 or later"),
        ([timeout(0), timeout(1), status(0, 9, 6), status(1, 7, 6)], 1, "last enqueued collective is #7"),
        ([timeout(0), timeout(1), status(0, 9, 6), status(1, 9, 5)], 1, "last completed collective is #5"),
        (
            ["\t - [3] finished collective #4, but didn't join collective #5 (count from 1)\n", timeout(0)],
            3,
            "#5 (line 1)",
        ),
        ([timeout(0), timeout(1)], None, ""),
        ([timeout(0), timeout(1, 7, "BROADCAST")], None, ""),
        ([timeout(0), timeout(1), f"[rank2]: {FULL}\n"], 2, "(line 3), and what other"),
        ([f"[rank0]: {FULL}\n"], 0, "it alone reports"),
        ([f"[rank{rank}]: {FULL}\n" for rank in (0, 1)], None, ""),
    ],
)
def test_the_suspect(log, rank, why):
    found = said("".join(log)).suspect
    assert (found and found.rank) == rank
    assert why in (found.why if found else "")


def test_torchrun_names_the_suspect():
    for log in ("kill", "segv", "exit", "user"):
        assert answer(KNOWN, (f"{log}.log", dict(LOGS)[f"{log}.log"])).suspect.rank == 2


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        (timeout(0) + timeout(1), "Ranks 0, 1 timed out in ALLREDUCE of 64 elements #7."),
        (timeout(0) + timeout(1, 8), "programs took different paths"),
        (timeout(0, ms=30_000), "The time-out was 30 s, shorter than the defaults of torch"),
        (
            "[E socket.cpp:1] EADDRINUSE: failed to listen on any local network address. port: 29500\n",
            "The port is 29500.",
        ),
        ("EADDRINUSE\nTimed out waiting for clients. 2/4 clients joined.\n", "2 of 4 processes came."),
        ("EADDRINUSE\n(world_size=4, worker_count=3, timeout=PATIENCE_S:30:00)\n", "3 of 4 processes came."),
        ("EADDRINUSE\nParameter indices which did not receive grad for rank 1: 4 5\n", "indices 4, 5,"),
    ],
)
def test_numbers_are_said(log, sentence):
    assert sentence in said(log).diagnoses[0].why


def test_the_timeline_has_the_lines_of_note_in_order():
    log = timeout(0) + status(0, 9, 6) + timeout(1) + f"[rank2]: {FULL}\n"
    moments = said(log).timeline
    assert [(one.rank, one.line, one.seconds, one.kind) for one in moments] == [
        (0, 1, 0.0, "consequence"),
        (0, 2, 9.0, "fact"),
        (1, 3, 1.0, "consequence"),
        (2, 4, None, "error"),
    ]
    assert moments[0].text.startswith("Watchdog caught collective operation timeout")
    many = said("".join(timeout(rank) for rank in range(500)))
    assert len(many.timeline) == 200
    assert max(len(one.text) for one in many.timeline) <= 160


def test_the_last_run_of_a_log_that_was_appended_to():
    begin = "W1121 10:00:00 1 torch/distributed/run.py:766] Setting OMP_NUM_THREADS environment variable to be 1\n"
    first = OWN.joinpath("logs", "user.log").read_text()
    (best,) = said(begin + first + begin + "EADDRINUSE\n").diagnoses
    assert best.id == "address-in-use"
    lines = first.count("\n") + 2
    assert f"An earlier run, which failed too, stands above line {lines}." in best.why
    best, *_ = said(begin + first + begin + "step 1\n").diagnoses
    assert "KeyError" in best.title


def test_the_last_error_of_nccl_is_said():
    log = """\
[rank1]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:219, unhandled system error, NCCL 2.21
[rank1]: ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.
[rank1]: Last error:
[rank1]: Something of which nobody has heard : 42
"""
    best, *_ = answer(BOOK, ("a.log", log.encode())).diagnoses
    assert best.id == "nccl-system-error"
    assert "NCCL's last error: `[rank1]: Something of which nobody has heard : 42`." in best.why


def test_no_place_is_named_where_tracebacks_cannot_be_told_apart():
    log = """\
Traceback (most recent call last):
Traceback (most recent call last):
  File "/home/me/a.py", line 1, in f
  File "/home/me/b.py", line 2, in g
ValueError: one
KeyError: 2
"""
    assert all(" at `" not in one.cause for one in said(log).diagnoses)


def test_lines_that_name_a_rank_and_lines_that_do_not_are_counted_apart():
    best, *_ = said(f"{FULL}\n[rank12]: {FULL}\n").diagnoses
    assert best.why.startswith("Seen 2 times, first in line 1; of the lines that name a rank, by rank 12.")


def test_the_line_that_matters_is_shown_where_it_matters(capsys, tmp_path):
    (tmp_path / "a.log").write_text("x" * 1000 + " RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB\n")
    assert "CUDA out of memory" in run(capsys, tmp_path / "a.log")[1].split("│")[1].split("\n")[0]


# -- what carries a log -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", dict(WRAPPED))
def test_a_log_reads_the_same_whatever_carries_it(name):
    best, *others = answers(KNOWN, (name, dict(WRAPPED)[name]))
    assert (best.id, best.rank, [one.id for one in best.followed], others) == (
        "python-exception",
        2,
        ["gloo-closed", "torchrun-child-failed"],
        [],
    )
    assert best.title == "A Python exception ended a rank: KeyError: 'label'"
    assert "`/tmp/dg/boom.py:11 in main`" in best.cause
    if "columns" not in name:
        assert best.evidence[0].line_number == 7


def test_a_line_of_json_with_a_whole_traceback_is_one_line_of_the_file():
    trace = 'Traceback (most recent call last):\n  File "/home/me/a.py", line 3, in f\n    g()\nKeyError: "x"\n'
    log = [
        json.dumps({"loss": 0.5}),
        json.dumps({"message": "it failed", "exc_info": trace, "rank": 3}),
        "",
        "EADDRINUSE",
    ]
    first, second = sorted(diagnose(log, KNOWN), key=lambda one: one.id)
    assert (first.id, first.evidence[0].line_number) == ("address-in-use", 4)
    assert (second.rank, second.evidence[0].line_number, second.title[-13:]) == (3, 2, 'KeyError: "x"')


def test_lines_that_were_cut_keep_their_numbers():
    long = "[rank1]: " + "x" * 60 + " CUDA out of memory. Tried to allocate 20 MiB, " + "y" * 60
    log = cut("\n".join([long, long.replace("rank1", "rank2"), "EADDRINUSE"]), 80).splitlines()
    found = {one.id: one for one in diagnose(log, KNOWN)}
    assert found["memory-cuda"].ranks == [1, 2]
    assert [one.line_number for one in found["memory-cuda"].evidence] == [1, 4]
    assert found["address-in-use"].evidence[0].line_number == len(log)


def test_lines_of_one_width_that_were_not_cut_stay_lines():
    log = [f"step {step:04} loss 0.5000 " + "-" * 60 for step in range(50)] + ["KeyError: 3"]
    assert "\0" not in unwrap("\n".join(log))
    two = ["a warning of one rank, " + "w" * 60, "EADDRINUSE"] * 2
    assert "\0" not in unwrap("\n".join(two))


def test_the_traceback_of_a_notebook_has_its_place():
    log = """\
---------------------------------------------------------------------------
ValueError                                Traceback (most recent call last)
Cell In[3], line 2
      1 from train import main
----> 2 main()

File ~/train.py:12, in main(batch)
     11 def main(batch):
---> 12     raise ValueError("negative label")

ValueError: negative label"""
    (best,) = diagnose(log.splitlines(), KNOWN)
    assert "`~/train.py:12 in main(batch)`" in best.cause
    assert best.evidence[0].line_number == 11


# -- lines and files ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "rank", "body"),
    [
        ("[rank3]: boom", 3, "boom"),
        ("[rank3]:   File", 3, "  File"),
        ("[default2]:[rank10]: boom", 10, "boom"),
        ("[default2]:boom", 2, "boom"),
        ("[2]:boom", 2, "boom"),
        ("12: boom", 12, "boom"),
        (" 3: boom", 3, "boom"),
        ("[1,5]<stderr>: boom", 5, "boom"),
        ("\x1b[31m[rank1]: \x1b[0mboom\x1b]0;t\x07", 1, "boom"),
        ("[W1121 12:50:20.266000 27 torch/distributed/run.py:766] boom", None, "boom"),
        ("W1121 20:25:10.615000 28203 torch/distributed/api.py:1028] boom", None, "boom"),
        (
            "[rank1]:[E1121 12:50:20.266000000 ProcessGroupNCCL.cpp:616] [PG ID 0 PG GUID 0(default_pg) Rank 1] boom",
            1,
            "boom",
        ),
        ("[E ProcessGroupNCCL.cpp:828] [Rank 7] boom", 7, "boom"),
        ("[80746] [rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] boom", 0, "boom"),
        ("node1:41:99 [4] NCCL WARN boom", None, "NCCL WARN boom"),  # a device, not a rank
        ("2026-11-21 10:00:00,123 boom", None, "boom"),
        ("2026-11-21T10:00:00.123Z [rank2]: boom", 2, "boom"),
        ("Nov 21 10:00:00 node1 slurmd[9]: boom", None, "boom"),
        ("trainer-1  | [rank0]: boom", 0, "boom"),
        ("[pod/job-worker-0/torch] 2026-11-21T10:00:00Z boom", None, "boom"),
        ("RuntimeError: boom", None, "RuntimeError: boom"),
        ("[7/10] step", None, "[7/10] step"),
        ("2026-11-21T10:00:00Z stdout F [rank2]: boom", 2, "boom"),
        ("non-zero exit 1 of Traceback", None, "non-zero exit 1 of Traceback"),
        ("10.0.0.7:   File", None, "  File"),
        ("(pid=4021)   File", None, "  File"),
        ("> > [rank1]:   File", 1, "  File"),
        (">>> boom", None, ">>> boom"),
        ("2026-11-21 10:00:00,123 - train.loop - ERROR - boom", None, "boom"),
        ("2026-11-21 10:00:00.123 | ERROR    | __main__:main:12 - boom", None, "boom"),
        ("[2026-11-21 10:00:00,123] [INFO] [launch.py:256:main] boom", None, "boom"),
        ("[2026-11-21 10:00:00,123][train][INFO] - boom", None, "boom"),
        ("11/21/2026 10:00:00 - INFO - __main__ - boom", None, "boom"),
        ("[INFO|trainer.py:2134] 2026-11-21 10:00:00,123 >> boom", None, "boom"),
        ("ERROR:train:boom", None, "boom"),
        ("ERROR:   File", None, "  File"),
        ("2026-11-21 10:00:00 torch.cuda.OutOfMemoryError: boom", None, "torch.cuda.OutOfMemoryError: boom"),
        ("worker-1  | 2026-11-21 10:00:00 ERROR [3]: boom", 3, "boom"),
        ("json.decoder.JSONDecodeError: boom", None, "json.decoder.JSONDecodeError: boom"),
    ],
)
def test_prefixes_of_a_line(raw, rank, body):
    """Further ones carry a whole log: `FORMS` in diagnose_logs.py."""
    line = read_line(raw)
    assert (line.rank, line.body) == (rank, body)


def test_times_compare_within_a_kind():
    zoned = [read_line(f"2026-11-21T{t} x").time for t in ("10:00:00.500Z", "12:00:00.500+02:00", "10:00:01Z")]
    assert zoned[0] == zoned[1]
    assert zoned[0].seconds < zoned[2].seconds
    glog, iso = read_line("[E1121 10:00:00.250000 a.cpp:1] x").time, read_line("2026-11-21 10:00:00,250 x").time
    assert glog == iso
    assert not glog.zoned


@pytest.mark.parametrize(
    ("paths", "ranks"),
    [
        (["logs/none_ab/attempt_0/3/stderr.log"], [3]),
        (["a/rank0.log", "a/rank_11.txt", "a/RANK-2"], [0, 11, 2]),
        (["out_0.txt", "out_1.txt", "out_2.txt"], [0, 1, 2]),
        (["slurm-100.out", "slurm-200.out"], [None, None]),
        (["train.log"], [None]),
    ],
)
def test_the_rank_of_a_file(paths, ranks):
    assert ranks_of(paths) == ranks


@pytest.mark.parametrize("sample", [1, 300, 10_000, 10**9])  # the last searches for each needle by itself
def test_a_search_finds_each_needle_wherever_it_is(monkeypatch, sample):
    monkeypatch.setattr("ddplab.diagnose.search.STEP", 97)
    monkeypatch.setattr("ddplab.diagnose.search.SAMPLE", sample)
    random_ = random.Random(1)
    needles = ["".join(random_.choices("abcd", k=random_.randint(6, 12))) for _ in range(40)]
    lines = [
        "".join(random_.choices("abcd", k=random_.randint(0, 60))) + random_.choice(["", *needles]) for _ in range(3000)
    ]
    text = "\n".join(lines)
    expected, at = {}, 0
    for line in lines:
        if on := [index for index, needle in enumerate(needles) if needle in line]:
            expected[at] = on
        at += len(line) + 1
    assert Search(needles).lines(text, 0, len(text)) == expected


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_pieces_of_any_size_give_the_same(size):
    for name in ("windows_ansi", "progress_bar", "userrec"):
        text = (OWN / "logs" / f"{name}.log").read_bytes().decode("utf-8")
        engine = Engine(KNOWN)
        engine.start(name)
        for at in range(0, len(text), size):
            engine.feed(text[at : at + size])
        assert engine.finish() == answers_to(name)


def test_a_line_that_never_ends_and_a_traceback_that_never_ends():
    header = "[rank1]: Traceback (most recent call last):\n"
    log = header + "[rank0]: x\n" * 50_000 + "[rank0]: CUDA error: oh\n" + "y" * 5_000_000 + "CUDA error: late"
    (best,) = diagnose([log], KNOWN)
    assert (best.id, best.rank, best.evidence[0].line_number) == ("cuda-error", 0, 50_002)


# -- the command line ---------------------------------------------------------------------------------


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    try:
        code = cli.main(["diagnose", *map(str, arguments)])
    except SystemExit as end:
        code = int(end.code or 0)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_the_text_is_short_and_quotes_its_lines(capsys):
    code, printed, _ = run(capsys, OWN / "logs" / "user.log")
    assert code == 0
    first = printed.split("\n2. ")[0]
    assert len(first.splitlines()) <= 30
    assert "│ line 7 rank 2: [rank2]: KeyError: 'label'" in first
    assert max(map(len, first.splitlines())) <= 280


def test_a_log_cannot_drive_the_terminal(capsys):
    for options in ([], ["--json"]):
        _, printed, _ = run(capsys, *options, OWN / "logs" / "hostile.log")
        assert not set(printed) & {*map(chr, range(9)), *map(chr, range(11, 32)), "\x7f", "\x9b", "\u202e"}


def test_standard_input_and_packed_files(capsys, tmp_path):
    log = (OWN / "logs" / "kill.log").read_bytes()
    command = [sys.executable, "-m", "ddplab", "diagnose", "--json"]
    piped = subprocess.run(command, input=log, capture_output=True, check=True, timeout=PATIENCE_S)
    packed = tmp_path / "a.log.gz"
    packed.write_bytes(gzip.compress(log))
    _, printed, _ = run(capsys, "--json", packed)
    assert json.loads(printed)["diagnoses"] == json.loads(piped.stdout)["diagnoses"]
    packed.write_bytes(gzip.compress(log)[:-9])  # cut off while it was copied
    assert run(capsys, "--json", packed)[0] == 0


def test_the_folder_of_torchrun(capsys, tmp_path):
    lines = (OWN / "logs" / "user.log").read_text().splitlines(keepends=True)
    for rank in range(4):
        folder = tmp_path / "none_abc" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text("")
        own = [line.removeprefix(f"[rank{rank}]: ") for line in lines if line.startswith(f"[rank{rank}]")]
        (folder / "stderr.log").write_text("".join(own))
    (tmp_path / "core").write_bytes(bytes(range(32)) * 100)
    code, printed, _ = run(capsys, "--json", tmp_path)
    found = json.loads(printed)["diagnoses"]
    assert code == 0
    mine = next(one for one in found if "KeyError" in one["title"])
    assert (mine["rank"], mine["evidence"][0]["source"]) == (2, f"{tmp_path}/none_abc/attempt_0/2/stderr.log")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["no-such.log"], "no-such.log does not exist; give a log file"),
        ([""], "an empty name is no LOG; give a file, a folder"),
        (["-", "a.log"], "must be the only LOG"),
        (["--dump", "x", "a.log"], "give one or the other"),
        (["--top", "0", "a.log"], "'0' is not a count from 1 on"),
        (["{empty}"], "holds no log file"),
        (["{zip}"], "zip is a zip archive (torch.save makes these, too), not a text log; for logs: unzip -p"),
        (["{xz}"], "xz is packed with xz, not a text log; xz -dc"),
        (["{tar}"], "tar is a tar archive, not a text log; unpack it"),
        (
            ["{pickle}"],
            "pickle is a pickle, not a text log; for the dumps of the flight recorder: ddplab diagnose --dump",
        ),
        (["{folder}"], "folder holds no text log; "),
        (["/dev/zero"], "/dev/zero is no log: it begins with 256 MiB of zeros"),
        (["{binary}"], "is not a text log, it holds binary data"),
        (["{gzip}"], "damaged gzip file"),
    ],
)
def test_bad_input_is_one_clear_line(capsys, tmp_path, arguments, reason):
    (tmp_path / "empty").mkdir()
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 100)
    (tmp_path / "gzip").write_bytes(b"\x1f\x8b\x08")
    (tmp_path / "xz").write_bytes(lzma.compress(b"a log"))
    (tmp_path / "pickle").write_bytes(pickle.dumps({"a": 1}, 2))
    with zipfile.ZipFile(tmp_path / "zip", "w") as packed:
        packed.writestr("a.log", "a log")
    with tarfile.open(tmp_path / "tar", "w") as archive:
        archive.add(tmp_path / "binary")
    (tmp_path / "folder").mkdir()
    shutil.copy(tmp_path / "zip", tmp_path / "folder")
    paths = {path.name: str(path) for path in tmp_path.iterdir()}
    code, printed, error = run(capsys, *(one.format(**paths) for one in arguments))
    assert (code, printed) == (2, "")
    assert reason in error
    assert error.count("\n") == 1


def test_output_that_cannot_be_written_is_no_traceback(tmp_path):
    command = f"{sys.executable} -m ddplab diagnose {OWN / 'logs' / 'user.log'}"
    for redirected, code, said in ((">/dev/full", 2, "ddplab: the output cannot be written: "), (">&-", 0, "")):
        ran = subprocess.run(f"{command} {redirected}", shell=True, capture_output=True, text=True, timeout=PATIENCE_S)
        assert (ran.returncode, ran.stderr[:38]) == (code, said)
    ran = subprocess.run(
        f"({command}; echo $? >&2) | true", shell=True, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ran.stderr in ("141\n", "0\n")  # the reader has left, or not yet


def test_ctrl_c_ends_the_reading_and_what_came_is_diagnosed():
    command = [sys.executable, "-m", "ddplab", "diagnose"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as endless:
        # more than a piece of input has to be taken before it can be known that the command reads
        endless.stdin.write(b"EADDRINUSE\n" + b"step 1\n" * 300_000)
        endless.stdin.flush()
        endless.send_signal(signal.SIGINT)
        printed, error = endless.communicate(timeout=PATIENCE_S)
    assert endless.returncode == 0
    assert b"store-port-taken" in printed
    assert error == b"ddplab: stopped by Ctrl-C; this is what the log says so far\n"


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16", "utf-8-sig"])
def test_text_of_any_width(capsys, tmp_path, encoding):
    (tmp_path / "a.log").write_text((OWN / "logs" / "user.log").read_text(), encoding=encoding)
    _, printed, _ = run(capsys, "--json", "--top", "1", tmp_path / "a.log")
    (found,) = json.loads(printed)["diagnoses"]
    assert found["title"].endswith("KeyError: 'label'")


def test_a_folder_with_nothing_but_json_is_read(capsys, tmp_path):
    (tmp_path / "log.json").write_text(json.dumps({"log": "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB"}))
    assert "memory-cuda-out-of-memory" in run(capsys, tmp_path)[1]


def test_memory_does_not_grow_with_the_log():
    program = """
        from pathlib import Path
        from ddplab.diagnose import Engine, entries
        engine = Engine(entries())
        engine.start("")
        piece = "".join(f"[rank{i % 8}]: step {i} loss 2.5 WARNING: slow, Broken pipe {i}\\n" for i in range(20_000))
        peaks = []
        for turn in range(13):
            engine.feed(piece)
            if turn in (3, 12):
                status = Path("/proc/self/status").read_text()  # getrusage would count the parent's peak, too
                peaks.append(int(status.split("VmHWM:")[1].split()[0]))
        engine.finish()
        print(peaks[0], peaks[1])
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    early, late = map(int, ran.stdout.split())
    assert late < 150_000  # KiB, the interpreter included
    assert late - early < 5_000  # the pieces between hold twice as much


def test_an_answer_that_begins_with_code_is_shown_as_code(tmp_path):
    log = tmp_path / "run.log"
    log.write_text("RuntimeError: DataLoader worker (pid 812) is killed by signal: Bus error.\n")
    printed = subprocess.run([sys.executable, "-m", "ddplab", "diagnose", str(log)], capture_output=True, text=True)
    assert "```" not in printed.stdout
    assert "  Fix:\n      docker run --shm-size=16g" in printed.stdout
