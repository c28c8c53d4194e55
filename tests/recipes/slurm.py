"""A real Slurm on a few nodes of this host: one controller, one slurmd per node, all its files in one folder."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

from ddplab.apparatus.machines import NamespaceError, Node, Program
from tools import PATIENCE_S, wait_until

TOOLS = {"slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "munged": "munge"}

# cred_expire: a requeued job waits until the credentials of its last run have expired, else two minutes.
# linuxproc, task/none, jobacct_gather/none: no cgroups are needed. config_overrides: a node may have more
# CPUs than this host. Short intervals: a job starts when it can, not at the next round of the scheduler.
_CONF = """
ClusterName=handbook
SlurmctldHost={login.name}({login.address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmctldParameters=preempt_send_user_signal
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdTimeout=10
KillWait=10
MinJobAge=3600
GresTypes=gpu
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""
_RUNNING = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "SUSPENDED", "STOPPED", "SIGNALING"}


class Slurm:
    """Slurm while the ``with`` block runs. ``SLURM_CONF`` in ``env`` is all that its commands need.

    Args:
        login: the node of the controller; jobs are submitted there.
        nodes: where jobs run. Each says that it has 4 CPUs and 2 GPUs; nothing checks that.
        folder: for all files of Slurm; empty, and kept.

    Raises:
        NamespaceError: on entering, if the nodes are not those of root.
        RuntimeError: on entering, if Slurm does not start; with what its daemons said.
    """

    def __init__(self, login: Node, nodes: Sequence[Node], folder: Path) -> None:
        self.login = login
        self.nodes = nodes
        self.folder = folder
        self.env = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[Program] = []

    def __enter__(self) -> Slurm:
        if not self.login.by_root:
            raise NamespaceError("Slurm needs root: slurmd may not set groups in a user namespace")
        lines = [f"NodeName={n.name} NodeAddr={n.address} CPUs=4 RealMemory=1000 Gres=gpu:2" for n in self.nodes]
        (self.folder / "state").mkdir()
        conf = _CONF.format(folder=self.folder, login=self.login, nodes="\n".join(lines))
        (self.folder / "slurm.conf").write_text(conf)
        (self.folder / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")  # any two devices
        self._munged()
        self._daemon(self.login, ["slurmctld", "-D"])
        for node in self.nodes:
            self._daemon(node, ["slurmd", "-D", "-N", node.name])
        deadline = time.monotonic() + PATIENCE_S
        while self.command("sinfo", "--noheader", "--format=%T").split() != ["idle"]:
            dead = [daemon for daemon in self._daemons if daemon.returncode is not None]
            if dead or time.monotonic() > deadline:
                self._daemons.append(self.login.start(["sinfo", "--Node", "--long"], self.env))
                self.__exit__()
                said = "".join(f"\n--- {' '.join(d.command)}\n{d.output[-2000:]}" for d in dead or self._daemons)
                raise RuntimeError(f"Slurm did not start; its logs are in {self.folder}{said}")
            time.sleep(0.2)
        return self

    def __exit__(self, *exc: object) -> None:
        # A daemon and its jobs have sessions of their own; what is left of them ends with their node.
        for daemon in reversed(self._daemons):
            daemon.kill()

    def command(self, *words: str) -> str:
        """What a command of Slurm says on the login node; empty while the controller does not answer."""
        program = Program(self.login.enter(words), self.env)  # a node would keep it, and it is asked hundreds of times
        return program.output if program.wait(PATIENCE_S) == 0 else ""

    def sbatch(self, script: Path, *options: str, args: Sequence[str] = ()) -> int:
        """Submit a script from its own folder, as a user would; return the job's number."""
        command = ["env", f"--chdir={script.parent}", "sbatch", "--parsable", *options, script.name, *args]
        said = self.login.run(command, env=self.env)
        return int(said.split()[-1])

    def show(self, job: int) -> dict[str, str]:
        """What ``scontrol show job`` says: JobState, Restarts, ExitCode, BatchHost, StdOut and more."""
        said = self.command("scontrol", "show", "job", str(job), "--oneliner")
        return dict(re.findall(r"(\S+?)=(\S*)", said))

    def wait(self, job: int, timeout_s: float = PATIENCE_S) -> str:
        """Wait until the job is over; return its last state, such as COMPLETED. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while (shown := self.show(job)).get("JobState", "PENDING") in _RUNNING:
            if time.monotonic() > deadline:
                self.command("scancel", str(job))
                raise TimeoutError(f"job {job} is {shown} after {timeout_s:g} s; it said:\n{self.output(job)}")
            time.sleep(0.3)
        return shown["JobState"]

    def wait_for(self, job: int, pattern: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait until the job has printed what this regular expression finds. Raises TimeoutError, or RuntimeError."""
        deadline = time.monotonic() + timeout_s
        while True:
            over = self.show(job).get("JobState", "PENDING") not in _RUNNING
            said = self.output(job)
            if re.search(pattern, said):
                return
            if over:
                raise RuntimeError(f"job {job} ended without saying {pattern!r}:\n{said}")
            if time.monotonic() > deadline:
                self.command("scancel", str(job))
                raise TimeoutError(f"job {job} did not say {pattern!r} in {timeout_s:g} s; it said:\n{said}")
            time.sleep(0.3)

    def output(self, job: int) -> str:
        """What the job has printed until now."""
        path = Path(self.show(job).get("StdOut", "/nonexistent"))
        return path.read_text(errors="replace") if path.exists() else ""

    def _daemon(self, node: Node, command: list[str]) -> None:
        self._daemons.append(node.start(command, self.env))

    def _munged(self) -> None:
        """Start the service by which Slurm's daemons know each other. One is enough: its socket is a file."""
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        files = {name: self.folder / f"munge.{name.split('-')[0]}" for name in ("key-file", "pid-file", "seed-file")}
        options = [f"--{name}={path}" for name, path in files.items()]
        # --force: pytest's folder is not for all users, and we are the only one.
        log = f"--log-file={self.folder}/munge.log"
        self._daemon(
            self.login, ["munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", log, *options]
        )
        munged, socket = self._daemons[-1], self.folder / "munge.socket"
        wait_until(lambda: socket.exists() or munged.returncode is not None)
        if not socket.exists():
            raise RuntimeError(f"munged did not start:\n{munged.output}")


def readers_folder(folder: Path) -> Path:
    """Put batch scripts, hello_ranks.py and, as train.py, a small program in which every rank speaks into a folder."""
    here = Path(__file__).parent
    recipes = here.parents[1] / "gallery" / "recipes"
    for script in [*recipes.glob("*.sbatch"), recipes / "hello_ranks.py"]:
        (folder / script.name).write_text(script.read_text())
    (folder / "train.py").write_text((here / "stand_in.py").read_text())
    return folder
