"""Run this first on a new cluster: it reports what is wrong there, and how to fix it.

    torchrun --standalone --nproc-per-node 8 hello_ranks.py      one machine
    srun python hello_ranks.py                                   as many ranks as Slurm starts
    RANK=1 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 python hello_ranks.py

Rank 0 prints one table; a rank that cannot reach rank 0 prints its own lines. The run ends
after the first check that finds something wrong. Exit code: 0 nothing is wrong, 1 otherwise.
No check, and no wait of a rank for another one, takes longer than twice --patience plus 5 s.
"""

import argparse
import fcntl
import json
import os
import queue
import resource
import signal
import socket
import statistics
import struct
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # the table reports it instead

import torch
import torch.distributed as dist

CHECKS = ["variables", "rendezvous", "ranks", "versions", "devices", "interfaces", "limits"]
CHECKS += ["clocks", "connections", "process group", "small all-reduce", "large all-reduce"]
FIXES = {  # what to do where a check itself cannot know
    "rendezvous": "if another program has that port (ss -ltnp), choose another MASTER_PORT",
    "ranks": "read their own output; if there is none, they were not started",
    "devices": "run nvidia-smi on their machine",
    "process group": "set GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME; look with NCCL_DEBUG=INFO",
    "small all-reduce": "look with NCCL_DEBUG=INFO, NCCL_P2P_DISABLE=1, NCCL_IB_DISABLE=1",
    "large all-reduce": "small ones work: compare the MTU of all interfaces and switches, or "
    "give a slow link more --patience",
}


NUMBERS = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"]


class Finding(NamedTuple):
    """What some ranks found in a check, and what to do about it."""

    check: str
    ranks: list
    what: str
    fix: str
    level: str = "WRONG"  # or "warn", after which the run continues


class Failed(Exception):  # noqa: N818
    """A check failed on this rank: what is wrong, and how to fix it."""


# -- What a process knows without the others -------------------------------------------------


def variables(env):
    """Which rank this process is, and what is wrong with the variables that define it."""
    env, launcher = dict(env), "torchrun" if "TORCHELASTIC_RUN_ID" in env else "hand"
    if "RANK" not in env and "SLURM_STEP_NUM_TASKS" in env:
        launcher = "srun"
        env["RANK"], env["LOCAL_RANK"] = env["SLURM_PROCID"], env["SLURM_LOCALID"]
        env["WORLD_SIZE"] = env["SLURM_STEP_NUM_TASKS"]
        env.setdefault("MASTER_PORT", str(20000 + int(env["SLURM_JOB_ID"]) % 10000))
        if env["SLURM_STEP_NUM_NODES"] == "1":
            env.setdefault("MASTER_ADDR", "127.0.0.1")
    elif "RANK" not in env and "WORLD_SIZE" not in env:
        env |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    me = {"launcher": launcher, "address": env.get("MASTER_ADDR")}
    me["agent"] = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun has the store
    for name in NUMBERS:
        me[name] = int(env[name]) if env.get(name, "").isdecimal() else None
    rank, world, local, per_host = map(me.get, NUMBERS[:4])
    me["LOCAL_RANK"], what = local or 0, ""
    absent = [name for name in ("RANK", "WORLD_SIZE", "MASTER_PORT") if me[name] is None]
    if absent := absent + ["MASTER_ADDR"] * (not me["address"]):
        what = f"not set, or not a number: {', '.join(absent)}"
    elif rank >= world:
        what = f"RANK={rank}, but WORLD_SIZE={world}"
    elif per_host is not None and not (local or 0) < per_host <= world:
        what = f"LOCAL_RANK={local}, LOCAL_WORLD_SIZE={per_host}, WORLD_SIZE={world}"
    fix = "start with torchrun; or: WORLD_SIZE and LOCAL_WORLD_SIZE count the processes of "
    fix += "all machines and of this one, RANK and LOCAL_RANK number them from 0; "
    fix += "MASTER_ADDR is the address of rank 0's machine, MASTER_PORT a free port there"
    return me, [Finding("variables", [rank or 0], what, fix)] if what else []


def resolve(name):
    """The addresses that a name resolves to on this machine."""
    return [entry[4][0] for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]


def family(address):
    """IPv4 or IPv6."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def own(address):
    """Whether this machine has the address."""
    with suppress(OSError), socket.create_server((address, 0), family=family(address)):
        return True
    return False


def loopback(address):
    """Whether the address means the same machine wherever it is used."""
    return address.startswith("127.") or address == "::1"


def interfaces():
    """The network interfaces of this machine that have an IPv4 address."""
    nics = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            with suppress(OSError):  # it has none; 0x8915 is Linux's SIOCGIFADDR
                nics[name] = socket.inet_ntoa(fcntl.ioctl(any_socket, 0x8915, request)[20:24])
    return nics


def announced(nics):
    """The address that gloo announces: an interface's, or what the host name resolves to."""
    if names := os.environ.get("GLOO_SOCKET_IFNAME"):
        return nics.get(names.split(",")[0], "127.0.0.1")
    with suppress(OSError):
        return next(filter(own, resolve(socket.gethostname())), "127.0.0.1")
    return "127.0.0.1"


def listen(address, rank):
    """Answer each connection with this rank's number; return the port."""
    server = socket.create_server((address, 0), family=family(address), backlog=1024)

    def answer():
        while True:
            with suppress(OSError), server.accept()[0] as caller:
                caller.sendall(str(rank).encode())

    threading.Thread(target=answer, daemon=True).start()
    return server.getsockname()[1]


def device(me):
    """This rank's device. Each check has its own thread, which must select the GPU again."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    index = me["LOCAL_RANK"] % torch.cuda.device_count()  # Slurm may show a rank only its own
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def collect(me):
    """What the others need to know about this rank."""
    where, gpu, uuid, nccl = device(me), None, None, None
    torch.zeros(1, device=where)  # a broken driver shows here
    if where.type == "cuda":
        properties = torch.cuda.get_device_properties(where)
        gpu, uuid = properties.name, str(properties.uuid)
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
    with socket.socket(family(me["ip"]), socket.SOCK_DGRAM) as probe:
        probe.connect((me["ip"], 9))  # sends nothing, but the system chooses the route
        route = probe.getsockname()[0]
    nics, shm = interfaces(), Path("/dev/shm")
    gloo = announced(nics)
    address = route if loopback(gloo) else gloo
    facts = {name: me[name] for name in NUMBERS}
    facts |= {"host": socket.gethostname(), "torch": torch.__version__, "NCCL": nccl}
    facts |= {"CUDA": torch.version.cuda, "Python": "{}.{}".format(*sys.version_info)}
    facts |= {"gpu": gpu, "uuid": uuid, "gpus": len(list(Path("/dev").glob("nvidia[0-9]*")))}
    facts |= {"visible": torch.cuda.device_count(), "nics": nics, "route": route, "gloo": gloo}
    facts |= {"address": address, "port": listen(address, me["RANK"])}
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        facts[name] = os.environ.get(name)
    facts["files"] = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    facts["shm"] = None
    if shm.is_dir():
        facts["shm"] = os.statvfs(shm).f_frsize * os.statvfs(shm).f_blocks
    return facts


# -- What follows from the facts of all ranks: nothing is sent, so each case can be tested ----


def findings(facts):
    """What is wrong, given ``{rank: what collect() returned there}``."""
    found, hosts = [], group(facts, "host")

    def add(*finding):
        found.append(Finding(*finding))

    for name in ("WORLD_SIZE", "torch", "CUDA", "NCCL", "Python"):
        if len(group(facts, name)) > 1:
            values = group(facts, name).items()
            what = "; ".join(f"{name} {value} on {spans(ranks)}" for value, ranks in values)
            if name == "WORLD_SIZE":
                everyone = "set it to the total on every process"
                add("variables", list(facts), what, everyone)
            else:
                fix = "start all ranks from one environment: a container, or a shared venv"
                level = "warn" if name == "Python" else "WRONG"
                add("versions", list(facts), what, fix, level)

    for host, ranks in hosts.items():
        here = {rank: facts[rank] for rank in ranks}
        numbers, counts = (list(group(here, name)) for name in NUMBERS[2:4])
        if len(numbers) < len(ranks) or set(counts) - {None, len(ranks)}:
            what = f"on {host}, LOCAL_RANK {numbers}, LOCAL_WORLD_SIZE {counts}"
            fix = "run one torchrun per machine, and give each machine its own host name"
            add("variables", ranks, what, fix, "warn")
        shm, files = here[ranks[0]]["shm"], min(fact["files"] for fact in here.values())
        if shm is not None and shm < 2**30:
            what = f"/dev/shm of {host} has {shm >> 20} MiB; data loaders and NCCL use it"
            fix = "docker run --ipc=host or --shm-size=8g; Kubernetes: an emptyDir in memory"
            add("limits", ranks, what, fix, "warn")
        if 0 <= files < 512 + 4 * len(facts):  # for all ranks, and for what workers share
            what = f"a process on {host} may open {files} files"
            add("limits", ranks, what, "ulimit -n 65536 before the start", "warn")

    for uuid, ranks in group(facts, "uuid").items():
        if uuid and len(ranks) > 1:
            fix = "use one rank per GPU, the one of LOCAL_RANK; check CUDA_VISIBLE_DEVICES"
            add("devices", ranks, f"all on one GPU of {facts[ranks[0]]['host']}, {uuid}", fix)
    without = group(facts, "gpu").get(None, [])
    if 0 < len(without) < len(facts) or any(facts[rank]["gpus"] for rank in without):
        fix = "use a CUDA build of torch, a driver as new as its CUDA, docker run --gpus all"
        level = "WRONG" if len(without) < len(facts) else "warn"
        add("devices", without, "torch sees no GPU, but there are some", fix, level)

    for rank, fact in facts.items():
        host, nics, gloo = fact["host"], fact["nics"], fact["GLOO_SOCKET_IFNAME"]
        nccl = fact["NCCL_SOCKET_IFNAME"]
        if 1 < fact["visible"] <= fact["LOCAL_RANK"]:
            what = f"LOCAL_RANK {fact['LOCAL_RANK']}, but {host} shows {fact['visible']} GPUs"
            add("devices", [rank], what, "start one rank per GPU")
        outside = [name for name in nics if not loopback(nics[name])]
        outside.sort(key=lambda name, f=fact: f["nics"][name] != f["route"])  # best first
        fix = f"on {host}: export GLOO_SOCKET_IFNAME={(outside or ['lo'])[0]}"
        has = f"{host} has " + ", ".join(f"{name} {address}" for name, address in nics.items())
        if gloo and set(gloo.split(",")) - set(nics):
            add("interfaces", [rank], f"GLOO_SOCKET_IFNAME={gloo}, but {has}", fix)
        elif len(hosts) > 1 and loopback(fact["gloo"]):
            why = f"GLOO_SOCKET_IFNAME={gloo}" if gloo else "its host name resolves to that"
            what = f"{host} announces the address {fact['gloo']}: {why}"
            add("interfaces", [rank], what, fix + ("" if gloo else ", or fix /etc/hosts"))
        if fact["gpu"] and nccl:  # prefixes of names; "=" whole names, "^" all but these
            names, exact = nccl.lstrip("^=").split(","), "=" in nccl[:2]
            taken = {n for n in nics for m in names if (n == m if exact else n.startswith(m))}
            taken = set(nics) - taken if nccl.startswith("^") else taken
            if not taken & set(outside if len(hosts) > 1 else nics):
                what = f"NCCL_SOCKET_IFNAME={nccl}, but {has}"
                add("interfaces", [rank], what, fix.replace("GLOO", "NCCL"))
    return found


def clock_findings(offsets):
    """What is wrong, given ``{rank: (seconds ahead of rank 0, uncertainty)}``."""
    found, fix = [], "run chrony or systemd-timesyncd on all machines"
    for rank, (ahead, unsure) in offsets.items():
        dead = abs(ahead) - unsure > 10  # torchrun's heartbeats are times of day
        why = "torchrun considers it dead at 15 s" if dead else "logs cannot be compared"
        what = f"{ahead:+.1f} s against rank 0 (± {unsure:.1f}): {why}"
        if abs(ahead) - unsure > 1:
            found.append(Finding("clocks", [rank], what, fix, "WRONG" if dead else "warn"))
    return found


def describe(facts):
    """The table's rows where nothing is wrong."""
    first, hosts = facts[0], group(facts, "host").items()
    at = ", ".join(f"{host} {facts[ranks[0]]['gloo']}" for host, ranks in hosts)
    names = [name for name in ("torch", "CUDA", "NCCL", "Python") if first[name]]
    shm, files = (min(fact[key] or 0 for fact in facts.values()) for key in ("shm", "files"))
    return {
        "versions": ", ".join(f"{name} {first[name]}" for name in names) + " on all ranks",
        "devices": f"{first['gpu']}, one per rank"
        if first["gpu"]
        else "CPU; no rank sees a GPU",
        "interfaces": f"gloo's addresses: {textwrap.shorten(at, 200)}",
        "limits": f"/dev/shm {shm / 2**30:.1f} GiB, {files} open files per process",
    }


def group(facts, key):
    """``{value of that key: ranks that have it}``"""
    groups = {}
    for rank, fact in facts.items():
        groups.setdefault(fact[key], []).append(rank)
    return groups


def spans(ranks):
    """``rank 7`` or ``ranks 0-3, 7``"""
    parts = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], rank]
        else:
            parts.append([rank])
    text = ", ".join("-".join(map(str, part)) for part in parts)
    return f"rank{'s' * (len(ranks) > 1)} {text}"


# -- What needs the others, in the order in which it can fail ---------------------------------


def reach(me, patience):
    """The address of rank 0's store, reached by plain TCP before any library tries."""
    port, ip, deadline = me["MASTER_PORT"], "no address", time.monotonic() + patience
    while True:
        try:
            ip = resolve(me["address"])[0]
            if me["RANK"] or me["agent"]:  # else this rank itself opens the port
                left = max(deadline - time.monotonic(), 0.1)
                socket.create_connection((ip, port), left).close()
            return ip
        except socket.gaierror:
            why, fix = "the name is unknown here", "use an address, or fix DNS or /etc/hosts"
        except ConnectionRefusedError:
            why, fix = "nobody listens there", "start rank 0 too, with the same MASTER_PORT"
            if own(ip):
                why, fix = f"{why}, on this machine", f"{fix}; is MASTER_ADDR its address?"
        except TimeoutError:
            why, fix = "no answer", "open the port in the firewalls; is that machine up?"
        except OSError as error:
            why, fix = str(error.strerror), f"look at the route: ip route get {ip}"
        if time.monotonic() >= deadline:
            raise Failed(f"{me['address']} ({ip}) port {port}, {patience:g} s: {why}", fix)
        time.sleep(0.2)


def meet(me, patience):
    """The store, through which ranks exchange data before there is a process group."""
    where, serve = (me["address"], me["MASTER_PORT"]), me["RANK"] == 0 and not me["agent"]
    here, wait = socket.gethostname(), timedelta(seconds=patience / 3)  # it tries twice
    try:
        store = dist.TCPStore(*where, me["WORLD_SIZE"], serve, wait, wait_for_workers=False)
        store.set_timeout(3 * wait)
        return store
    except dist.DistError as error:
        if "EADDRINUSE" in str(error):
            fix = "choose another MASTER_PORT; ss -ltnp shows who has it"
            raise Failed(f"port {where[1]} of {here} is taken", fix) from None
        if serve and not own(me["ip"]):
            has = ", ".join(interfaces().values())
            what = f"MASTER_ADDR is {me['ip']}, but rank 0 runs on {here}, which has {has}"
            raise Failed(what, "set it to the address of rank 0's machine") from None
        raise


def arrive(me, store):
    """Report that this rank is here; fail if its number is too large or taken."""
    if me["RANK"] == 0:
        store.set("WORLD_SIZE", str(me["WORLD_SIZE"]))
    try:
        world = int(store.get("WORLD_SIZE"))
    except dist.DistError:
        raise Failed("rank 0 has not come", "is it running? read its output") from None
    if me["RANK"] >= world:
        what = f"RANK={me['RANK']}, but on rank 0 WORLD_SIZE={world}"
        raise Failed(what, "set it to the total on every process")
    if store.add(f"arrived/{me['RANK']}", 1) > 1:
        raise Failed(f"two processes have RANK={me['RANK']}", "give each process its own")


def compare_clocks(me, store, facts):
    """How far this clock is ahead of rank 0's, from the fastest of five answers."""
    for rank in [r for r in facts if r and facts[r]["LOCAL_RANK"] == 0]:  # on rank 0 only
        for i in range(5):
            store.get(f"ask/{rank}/{i}")
            store.set(f"answer/{rank}/{i}", repr(time.time()))
    if me["RANK"] == 0 or me["LOCAL_RANK"]:
        return None
    answers = []
    for i in range(5):
        asked = time.time()
        store.set(f"ask/{me['RANK']}/{i}", "")
        there, back = float(store.get(f"answer/{me['RANK']}/{i}")), time.time()
        answers.append(((back - asked) / 2, (asked + back) / 2 - there))
    return min(answers)[::-1]


def connect(me, store, patience):
    """Connect each machine to the others, at the address that each announces, on any port."""
    if me["LOCAL_RANK"]:
        return
    ranks = [rank for rank in range(me["WORLD_SIZE"]) if rank != me["RANK"]]
    others = [json.loads(store.get(f"devices/{rank}"))[0] for rank in ranks]
    others = [fact for fact in others if fact["LOCAL_RANK"] == 0]

    def knock(fact):
        try:
            at = (fact["address"], fact["port"])
            with socket.create_connection(at, patience / 2) as line:
                answer = line.recv(16).decode()
            return "" if answer == str(fact["RANK"]) else f"rank {answer} answers"
        except OSError as error:
            return error.strerror or "no answer"

    with ThreadPoolExecutor(64) as pool:
        for fact, why in zip(others, list(pool.map(knock, others)), strict=True):
            if why:
                what = f"{socket.gethostname()} cannot reach {fact['host']}, {fact['address']}"
                fix = "open all ports between machines, not only MASTER_PORT; or, if that is "
                fix += "the wrong network, set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME"
                raise Failed(f"{what}: {why}", fix)


def join(me, store, patience):
    """Make the process group, with gloo for CPU tensors also where there are GPUs."""
    store, cuda = dist.PrefixStore("group", store), torch.cuda.is_available()
    # NCCL's watchdog would end the process without a table, so it has to wait longer.
    options = {"timeout": timedelta(seconds=3 * patience if cuda else patience)}
    options |= {"rank": me["RANK"], "world_size": me["WORLD_SIZE"], "store": store}
    options |= {"device_id": device(me)} if cuda else {}
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", **options)


def all_reduce(me, nbytes, where, rounds=5):
    """Seconds per all-reduce of float32: the median, after one that is not counted."""
    world, seconds, numbers = me["WORLD_SIZE"], [], nbytes // 4
    base = torch.arange(1000.0, device=where).repeat(numbers // 1000 + 1)[:numbers]
    for _ in range(1 + rounds):
        x = base + me["RANK"]
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(x)
        if x.is_cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        if not torch.equal(x, base * world + world * (world - 1) // 2):
            raise Failed("a wrong sum", "test halves of the machines to find the faulty one")
    return statistics.median(seconds[1:])


# -- The checks in order, and the table -------------------------------------------------------


class Run:
    """Each check ends at rank 0, which collects what all ranks found and decides to go on."""

    def __init__(self, me, found, patience):
        self.me, self.rank, self.found, self.patience = me, me["RANK"] or 0, found, patience
        self.check, self.rows, self.waiting, self.store = "variables", {}, [], None

    def bounded(self, action):
        """Its result, and what is wrong. In a thread: a call into torch cannot be stopped."""
        box = queue.SimpleQueue()

        def run():
            try:
                box.put((action(), None))
            except Exception as error:
                box.put((None, error.args if isinstance(error, Failed) else (str(error), "")))

        threading.Thread(target=run, daemon=True).start()
        try:
            value, wrong = box.get(timeout=self.patience + 1)
        except queue.Empty:
            value, wrong = None, (f"not done after {self.patience + 1:g} s", "")
        if wrong:
            what, fix = textwrap.shorten(wrong[0], 250), wrong[1] or FIXES.get(self.check, "")
            wrong = Finding(self.check, [self.rank], what, fix)
        return value, wrong

    def alone(self, check, action):
        """A check that a rank makes before rank 0 collects its results."""
        self.check = check
        value, wrong = self.bounded(action)
        if wrong:
            self.leave(wrong)
        return value

    def together(self, check, action, judge):
        """A check on all ranks; on rank 0 ``judge(values)`` gives rows and findings."""
        self.check, store = check, self.store
        value, wrong = self.bounded(action)
        limit_s = 2 * self.patience + 5
        what = f"no message from rank 0 for {limit_s:g} s"
        silent = Finding(check, [0], what, "read its own output")
        late = threading.Timer(limit_s, self.leave, [silent])  # a store may never answer
        late.daemon = True
        late.start()
        store.set(f"{check}/{self.rank}", json.dumps([value, wrong]))
        if self.rank == 0:
            values = self.gather(check)
            if not self.failed():
                rows, found = judge(values)
                self.rows |= rows
                self.found += found
            if self.failed():
                self.show()
            store.set(f"{check}/verdict", "wrong" if self.failed() else "right")
        while not store.check([f"{check}/verdict"]):
            time.sleep(0.02)
        right = store.get(f"{check}/verdict") == b"right"
        late.cancel()
        if right and wrong:  # rank 0 had not seen it
            self.report(wrong)
        if not right:
            self.exit(1)

    def gather(self, check):
        """What each rank returned; a rank without a result in time is a finding."""
        values, deadline = {}, time.monotonic() + self.patience + 2
        self.waiting = list(range(self.me["WORLD_SIZE"]))
        while self.waiting and time.monotonic() < deadline:
            for rank in [r for r in self.waiting if self.store.check([f"{check}/{r}"])]:
                values[rank], wrong = json.loads(self.store.get(f"{check}/{rank}"))
                self.found += [Finding(*wrong)] if wrong else []
                self.waiting.remove(rank)
                if self.store.add(f"arrived/{rank}", 0) > 1:
                    what = "two processes have this RANK"
                    self.found.append(Finding("ranks", [rank], what, "give each its own"))
            if check == "ranks":
                hosts = group(dict(sorted(values.items())), "host").items()
                here = "; ".join(f"{spans(ranks)} on {host}" for host, ranks in hosts)
                self.rows[check] = f"{len(values)} of {self.me['WORLD_SIZE']} are here: {here}"
            time.sleep(0.02)
        self.give_up(f"no message for {self.patience + 2:g} s")
        return dict(sorted(values.items()))

    def give_up(self, what):
        """Report the ranks that rank 0 still waits for as missing."""
        if self.waiting:
            self.found.append(Finding(self.check, self.waiting, what, FIXES["ranks"]))

    def failed(self):
        """Whether to stop here."""
        return any(finding.level == "WRONG" for finding in self.found)

    def leave(self, finding):
        """Report it and exit, without another word to the store."""
        self.store = None
        self.report(finding)

    def report(self, *findings):
        """Report what is wrong when not all ranks can be asked, and exit."""
        self.found += findings
        if self.rank == 0:
            self.show()
        else:
            who = f"hello_ranks: rank {self.rank} on {socket.gethostname()}"
            say(*(f"{who}, {f.check}: {f.what}\n    → {f.fix}" for f in self.found))
        self.exit(1)

    def show(self):
        """Print the table."""
        who = f"WORLD_SIZE {self.me['WORLD_SIZE']}, started by {self.me['launcher']}"
        lines = [f"hello_ranks: {who}"]
        ahead, every = [], []
        for check in CHECKS:
            found = {}  # ranks that found the same share a line
            for finding in self.found:
                if finding.check == check:
                    found.setdefault(finding[2:], []).extend(finding.ranks)
            levels = [level for _, _, level in found]
            every += levels
            texts = [self.rows[check]] if check in self.rows else []
            texts = texts if check == "ranks" or "WRONG" not in levels else []
            for (what, fix, _), ranks in list(found.items())[:8]:
                texts = [line for line in texts if line != f"→ {fix}"]  # once, below the last
                texts += [f"{spans(ranks)}: {what}", f"→ {fix}"]
            left = f"{check:<18}{max([*levels, 'ok'], key='okwarnWRONG'.find):<7}"
            for text in texts:
                lines += textwrap.wrap(left + text, 94, subsequent_indent=" " * 27)
                left = " " * 25
            ahead += [] if texts else [check]
        lines += textwrap.wrap(f"not checked: {', '.join(ahead)}", 94) if ahead else []
        wrong, warned = every.count("WRONG") or "nothing", every.count("warn")
        say(*lines, f"{wrong} wrong" + f", {warned} to look at" * (warned > 0))

    def exit(self, code):
        """End this process; rank 0, which may hold the store, ends last."""
        late = threading.Timer(5, os._exit, [code])  # however the store behaves
        late.daemon = True
        late.start()
        with suppress(TypeError, AttributeError, dist.DistError):  # without a store, at once
            others = self.me["WORLD_SIZE"] - 1 - len(self.waiting)
            left, deadline = self.store.add("left", int(self.rank > 0)), time.monotonic() + 3
            while self.rank == 0 and left < others and time.monotonic() < deadline:
                time.sleep(0.02)
                left = self.store.add("left", 0)
        os._exit(code)  # a thread may hang; gloo's can abort Python at exit (hello_ddp.py)


def say(*lines):
    """Print in one write: ranks share the output."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def main():
    """Make all checks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--patience", type=float, default=60, help="seconds for each check")
    sizes = "of the large all-reduces; without it, 1024 and 4096 on GPUs and 64 on CPUs"
    parser.add_argument("--mib", type=float, nargs="+", help=f"sizes {sizes}")
    args = parser.parse_args()
    gpus = torch.cuda.is_available()
    sizes = args.mib or ([1024, 4096] if gpus else [64])
    me, found = variables(os.environ)
    world, patience, facts = me["WORLD_SIZE"], args.patience, {}
    run = Run(me, found, patience)

    def stopped(*_):  # torchrun stops all ranks when one has failed
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if run.rank == 0 and not run.failed():
            run.give_up("no message before the launcher stopped this run")
            run.show()
        os._exit(1)

    signal.signal(signal.SIGTERM, stopped)
    if found:
        run.report()
    run.rows["variables"] = f"RANK, WORLD_SIZE={world}, MASTER_ADDR={me['address']}, …"
    me["ip"] = run.alone("rendezvous", lambda: reach(me, patience))
    store = run.alone("rendezvous", lambda: meet(me, patience))
    host = "torchrun" if me["agent"] else "rank 0"
    run.rows["rendezvous"] = f"the store of {host} at {me['ip']} port {store.port}"
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # the store outlives it
    second = store.clone()  # a waiting call locks its connection, so the checks get another
    run.store, store = (dist.PrefixStore(attempt, each) for each in (second, store))
    run.alone("ranks", lambda: arrive(me, store))

    def judge_facts(values):
        facts.update(values)
        return describe(facts), findings(facts)

    def judge_clocks(values):
        offsets = {rank: value for rank, value in values.items() if value}
        ahead, unsure = max(offsets.values(), key=lambda each: abs(each[0]), default=(0, 0))
        text = f"at most {1e3 * abs(ahead):.1f} ms from rank 0's, ± {1e3 * unsure:.1f} ms"
        return {"clocks": text if offsets else "one machine"}, clock_findings(offsets)

    def row(text):
        return lambda values: ({run.check: text(values)}, [])

    def reached(values):
        hosts = len(group(facts, "host"))
        return f"{hosts} machines reach each other at any port" if hosts > 1 else "one machine"

    def speed(values):
        rates = []
        for mib, seconds in zip(sizes, zip(*values.values(), strict=True), strict=True):
            slowest, bits = max(seconds), 8e-9 * int(mib * 2**20)
            bus = bits / slowest * 2 * (world - 1) / world
            how = f"{bits / slowest:.2f} Gbit/s, bus {bus:.2f} (median of 5, slowest rank)"
            rates.append(f"{mib:g} MiB in {1e3 * slowest:.1f} ms: {how}")
        return "; ".join(rates) if world > 1 else "one rank"

    def short(values):
        each = zip(backends, zip(*values.values(), strict=True), strict=True)
        times = ", ".join(f"{name} {1e3 * max(seconds):.2f} ms" for name, seconds in each)
        return f"4 KiB: {times}, sums right"

    def on_each(nbytes):  # gloo's tensors are on the CPU, NCCL's on the GPU
        kinds = [torch.device("cpu"), device(me)][: len(backends)]
        return [all_reduce(me, nbytes, where) for where in kinds]

    def large():
        return [all_reduce(me, int(mib * 2**20), device(me)) for mib in sizes]

    backends = ["gloo", "NCCL"] if gpus else ["gloo"]
    both = " and ".join(backends)
    checks = {
        "ranks": (lambda: {"host": socket.gethostname()}, lambda values: ({}, [])),
        "devices": (lambda: collect(me), judge_facts),
        "clocks": (lambda: compare_clocks(me, store, facts), judge_clocks),
        "connections": (lambda: connect(me, store, patience), row(reached)),
        "process group": (lambda: join(me, store, patience), row(lambda _: both)),
        "small all-reduce": (lambda: on_each(4096), row(short)),
        "large all-reduce": (large, row(speed)),
    }
    try:
        for check, (action, judge) in checks.items():
            run.together(check, action, judge)
    except dist.DistError as error:
        fix = "the process that held it has ended: read its output"
        run.report(Finding(run.check, [run.rank], f"the store is gone: {error}", fix))
    if run.rank == 0:
        run.show()
    run.exit(0)


if __name__ == "__main__":
    main()
