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
import resource
import shutil
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
from ipaddress import ip_address
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
VERSIONS = ["torch", "CUDA", "NCCL", "Python"]
NAMES = ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"]


class Finding(NamedTuple):
    """What some ranks found in a check, and what to do about it."""

    check: str
    ranks: list
    what: str
    fix: str
    level: str = "WRONG"  # or "warn" or "ok", after which the run continues


def fine(check, text):
    """What the table says where nothing is wrong."""
    return Finding(check, [], text, "", "ok")


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
    me = {name: int(env[name]) if env.get(name, "").isdecimal() else None for name in NUMBERS}
    me |= {"launcher": launcher, "address": env.get("MASTER_ADDR")}
    me["agent"] = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun has the store
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
    where, nics, shm = device(me), interfaces(), Path("/dev/shm")
    torch.zeros(1, device=where)  # a broken driver shows here
    with socket.socket(family(me["ip"]), socket.SOCK_DGRAM) as probe:
        probe.connect((me["ip"], 9))  # sends nothing, but the system chooses the route
        route = probe.getsockname()[0]
    gloo = announced(nics)
    address = route if ip_address(gloo).is_loopback else gloo
    facts = {name: me[name] for name in NUMBERS}
    facts |= {name: os.environ.get(name) for name in NAMES}
    facts |= {"host": socket.gethostname(), "nics": nics, "route": route, "gloo": gloo}
    facts |= {"address": address, "port": listen(address, me["RANK"])}
    facts |= {"torch": torch.__version__, "CUDA": torch.version.cuda, "NCCL": None}
    facts |= {"Python": "{}.{}".format(*sys.version_info), "gpu": None, "uuid": None}
    facts |= {"gpus": len(list(Path("/dev").glob("nvidia[0-9]*")))}
    facts |= {"visible": torch.cuda.device_count()}
    facts |= {"files": resource.getrlimit(resource.RLIMIT_NOFILE)[0]}
    facts |= {"shm": shutil.disk_usage(shm).total if shm.is_dir() else None}
    if where.type == "cuda":
        card, nccl = torch.cuda.get_device_properties(where), torch.cuda.nccl.version()
        facts |= {"gpu": card.name, "uuid": str(card.uuid), "NCCL": ".".join(map(str, nccl))}
    return facts


# -- What follows from the facts of all ranks: nothing is sent, so each case can be tested ----


def findings(facts):
    """What the table says, given ``{rank: what collect() returned there}``."""
    first, hosts = facts[0], group(facts, "host").items()
    names = ", ".join(f"{name} {first[name]}" for name in VERSIONS if first[name])
    at = ", ".join(f"{host} {facts[ranks[0]]['gloo']}" for host, ranks in hosts)
    gpu = f"{first['gpu']}, one per rank" if first["gpu"] else "CPU; no rank sees a GPU"
    shm, files = (min(fact[key] or 0 for fact in facts.values()) for key in ("shm", "files"))
    yield fine("versions", f"{names} on all ranks")
    yield fine("devices", gpu)
    yield fine("interfaces", f"gloo's addresses: {textwrap.shorten(at, 200)}")
    yield fine("limits", f"/dev/shm {shm / 2**30:.1f} GiB, {files} open files per process")
    for wrong in (unequal, machines, gpus, networks):
        yield from wrong(facts)


def unequal(facts):
    """What has to be the same on all ranks."""
    fixes = {"WORLD_SIZE": ("variables", "set it to the total on every process")}
    venv = "versions", "start all ranks from one environment: a container, or a shared venv"
    for name in ("WORLD_SIZE", *VERSIONS):
        if len(values := group(facts, name)) > 1:
            what = "; ".join(f"{name} {value} on {spans(values[value])}" for value in values)
            check, fix = fixes.get(name, venv)
            level = "warn" if name == "Python" else "WRONG"
            yield Finding(check, list(facts), what, fix, level)


def machines(facts):
    """Numbers and limits of the ranks of one machine."""
    for host, ranks in group(facts, "host").items():
        here = {rank: facts[rank] for rank in ranks}
        numbers, counts = (list(group(here, name)) for name in NUMBERS[2:4])
        if len(numbers) < len(ranks) or set(counts) - {None, len(ranks)}:
            what = f"on {host}, LOCAL_RANK {numbers}, LOCAL_WORLD_SIZE {counts}"
            fix = "run one torchrun per machine, and give each machine its own host name"
            yield Finding("variables", ranks, what, fix, "warn")
        shm, files = here[ranks[0]]["shm"], min(fact["files"] for fact in here.values())
        if shm is not None and shm < 2**30:
            what = f"/dev/shm of {host} has {shm >> 20} MiB; data loaders and NCCL use it"
            fix = "docker run --ipc=host or --shm-size=8g; Kubernetes: an emptyDir in memory"
            yield Finding("limits", ranks, what, fix, "warn")
        if 0 <= files < 512 + 4 * len(facts):  # for all ranks, and for what workers share
            what, fix = f"a process on {host} may open {files} files", "ulimit -n 65536"
            yield Finding("limits", ranks, what, f"{fix} before the start", "warn")


def gpus(facts):
    """One GPU for each rank, or none for all."""
    for uuid, ranks in group(facts, "uuid").items():
        if uuid and len(ranks) > 1:
            what = f"all on one GPU of {facts[ranks[0]]['host']}, {uuid}"
            fix = "use one rank per GPU, the one of LOCAL_RANK; check CUDA_VISIBLE_DEVICES"
            yield Finding("devices", ranks, what, fix)
    without = group(facts, "gpu").get(None, [])
    if 0 < len(without) < len(facts) or any(facts[rank]["gpus"] for rank in without):
        what = "torch sees no GPU, but there are some"
        fix = "use a CUDA build of torch, a driver as new as its CUDA, docker run --gpus all"
        level = "WRONG" if len(without) < len(facts) else "warn"
        yield Finding("devices", without, what, fix, level)
    for rank, fact in facts.items():
        local, visible = fact["LOCAL_RANK"], fact["visible"]
        if 1 < visible <= local:
            what = f"LOCAL_RANK {local}, but {fact['host']} shows {visible} GPUs"
            yield Finding("devices", [rank], what, "start one rank per GPU")


def networks(facts):
    """Interfaces that variables name for gloo and NCCL; addresses that others can reach."""
    alone = len(group(facts, "host")) == 1
    for rank, fact in facts.items():
        host, nics, (gloo, nccl) = fact["host"], fact["nics"], map(fact.get, NAMES)
        outside = [name for name in nics if not ip_address(nics[name]).is_loopback]
        outside.sort(key=lambda name, fact=fact: fact["nics"][name] != fact["route"])
        fix = f"on {host}: export GLOO_SOCKET_IFNAME={(outside or ['lo'])[0]}"  # the best one
        has = f"{host} has " + ", ".join(f"{name} {address}" for name, address in nics.items())
        if gloo and set(gloo.split(",")) - set(nics):
            yield Finding("interfaces", [rank], f"GLOO_SOCKET_IFNAME={gloo}, but {has}", fix)
        elif not alone and ip_address(fact["gloo"]).is_loopback:
            why = f"GLOO_SOCKET_IFNAME={gloo}" if gloo else "its host name resolves to that"
            what = f"{host} announces the address {fact['gloo']}: {why}"
            fixes = fix if gloo else f"{fix}, or fix /etc/hosts"
            yield Finding("interfaces", [rank], what, fixes)
        if fact["gpu"] and nccl and not taken(nccl, nics) & set(nics if alone else outside):
            what, fix = f"NCCL_SOCKET_IFNAME={nccl}, but {has}", fix.replace("GLOO", "NCCL")
            yield Finding("interfaces", [rank], what, fix)


def taken(pattern, nics):
    """The interfaces that NCCL takes: prefixes; "=" means whole names, "^" all but these."""
    names, exact = tuple(pattern.lstrip("^=").split(",")), "=" in pattern[:2]
    found = {nic for nic in nics if (nic in names if exact else nic.startswith(names))}
    return set(nics) - found if pattern.startswith("^") else found


def group(facts, key):
    """``{value of that key: ranks that have it}``"""
    groups = {}
    for rank, fact in facts.items():
        groups.setdefault(fact[key], []).append(rank)
    return groups


def spans(ranks):
    """``rank 7`` or ``ranks 0-3, 7``"""
    parts = []  # of each row of numbers the first and the last
    for rank in sorted(ranks):
        if parts and rank == parts[-1][-1] + 1:
            parts[-1][1:] = [rank]
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
    """How far this clock is ahead of rank 0's, and how sure: the fastest of five answers."""
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


def clock_findings(values):
    """Given ``{rank: (seconds ahead of rank 0, uncertainty), or None}``."""
    offsets = {rank: value for rank, value in values.items() if value}
    most, unsure = max(offsets.values(), key=lambda each: abs(each[0]), default=(0, 0))
    text = f"at most {1e3 * abs(most):.1f} ms from rank 0's, ± {1e3 * unsure:.1f} ms"
    yield fine("clocks", text if offsets else "one machine")
    for rank, (ahead, unsure) in offsets.items():
        dead = abs(ahead) - unsure > 10  # torchrun's heartbeats are times of day
        why = "torchrun considers it dead at 15 s" if dead else "logs cannot be compared"
        what = f"{ahead:+.1f} s against rank 0 (± {unsure:.1f}): {why}"
        fix = "run chrony or systemd-timesyncd on all machines"
        if abs(ahead) - unsure > 1:
            yield Finding("clocks", [rank], what, fix, "WRONG" if dead else "warn")


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


def slowest(values):
    """The most seconds under each name, given ``{rank: {name: seconds}}``."""
    return [(name, max(each[name] for each in values.values())) for name in values[0]]


def latency(values):
    """The row of the small all-reduces, named by their backends."""
    times = ", ".join(f"{name} {1e3 * seconds:.2f} ms" for name, seconds in slowest(values))
    yield fine("small all-reduce", f"4 KiB: {times}, sums right")


def rates(values):
    """The row of the large all-reduces, named by their MiB."""
    texts, world = [], len(values)
    for mib, seconds in slowest(values):
        rate = 8e-9 * int(float(mib) * 2**20) / seconds
        both = f"{rate:.2f} Gbit/s, bus {rate * 2 * (world - 1) / world:.2f}"
        how = f"{1e3 * seconds:.1f} ms: {both} (median of 5, slowest rank)"
        texts.append(f"{float(mib):g} MiB in {how}")
    yield fine("large all-reduce", "; ".join(texts) if world > 1 else "one rank")


# -- The run, and its table -------------------------------------------------------------------


class Run:
    """Each check ends at rank 0, which collects what all ranks found and decides to go on."""

    def __init__(self, me, found, patience):
        self.me, self.rank, self.found, self.patience = me, me["RANK"] or 0, found, patience
        self.check, self.values, self.waiting, self.store = "variables", {}, [], None

    def bounded(self, action):
        """Its result, and what is wrong. In a thread: a call into torch cannot be stopped."""
        fix, box, limit_s = FIXES.get(self.check, ""), [], self.patience + 1

        def make():
            try:
                box.append((action(), None, fix))
            except Failed as failed:
                box.append((None, *failed.args))
            except Exception as error:
                box.append((None, str(error), fix))

        thread = threading.Thread(target=make, daemon=True)
        thread.start()
        thread.join(limit_s)
        value, what, fix = box[0] if box else (None, f"not done after {limit_s:g} s", fix)
        if what is None:
            return value, None
        return None, Finding(self.check, [self.rank], textwrap.shorten(what, 250), fix)

    def alone(self, check, action):
        """A check that a rank makes before rank 0 collects its results."""
        self.check = check
        value, wrong = self.bounded(action)
        if wrong:
            self.report(wrong)
        return value

    def together(self, check, action, judge):
        """A check on all ranks; rank 0 adds ``judge(values)``, and returns their values."""
        self.check, self.values, store = check, {}, self.store
        value, wrong = self.bounded(action)
        limit_s = 2 * self.patience + 5
        what = f"no message from rank 0 for {limit_s:g} s"
        silent = Finding(check, [0], what, "read its own output")
        late = threading.Timer(limit_s, self.report, [silent])  # a store may never answer
        late.start()
        store.set(f"{check}/{self.rank}", json.dumps([value, wrong]))
        if self.rank == 0:
            self.gather()
            self.found += () if self.failed() else judge(self.values)
            if self.failed():
                self.show()
            store.set(f"{check}/verdict", "wrong" if self.failed() else "right")
        while not store.check([f"{check}/verdict"]):
            time.sleep(0.02)
        right = store.get(f"{check}/verdict") == b"right"
        late.cancel()
        if not right:
            self.exit(1)
        if wrong:  # rank 0 had not seen it
            self.report(wrong)
        return self.values

    def gather(self):
        """What each rank returned; a rank without a result in time is a finding."""
        values, deadline = self.values, time.monotonic() + self.patience + 2
        self.waiting = list(range(self.me["WORLD_SIZE"]))
        while self.waiting and time.monotonic() < deadline:
            for rank in [r for r in self.waiting if self.store.check([f"{self.check}/{r}"])]:
                values[rank], wrong = json.loads(self.store.get(f"{self.check}/{rank}"))
                self.found += [Finding(*wrong)] if wrong else []
                self.waiting.remove(rank)
                if self.store.add(f"arrived/{rank}", 0) > 1:
                    what = "two processes have this RANK"
                    self.found.append(Finding("ranks", [rank], what, "give each its own"))
            time.sleep(0.02)
        self.values = dict(sorted(values.items()))
        self.close(f"no message for {self.patience + 2:g} s")

    def close(self, what):
        """Say who is here, and of those that rank 0 still waits for what they did."""
        if self.check == "ranks" and self.values:
            hosts = group(dict(sorted(self.values.items())), "host").items()
            here = "; ".join(f"{spans(ranks)} on {host}" for host, ranks in hosts)
            text = f"{len(self.values)} of {self.me['WORLD_SIZE']} are here: {here}"
            self.found.insert(0, fine("ranks", text))
        if self.waiting:
            self.found.append(Finding(self.check, self.waiting, what, FIXES["ranks"]))

    def failed(self):
        """Whether to stop here."""
        return any(finding.level == "WRONG" for finding in self.found)

    def stopped(self, *_):
        """Handle SIGTERM: torchrun stops all ranks when one has failed."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self.rank == 0 and not self.failed():
            self.close("no message before the launcher stopped this run")
            self.show()
        os._exit(1)

    def report(self, *findings):
        """Report what is wrong when not all ranks can be asked, and exit."""
        self.store, self.found = None, [*self.found, *findings]
        if self.rank == 0:
            self.show()
        else:
            who = f"hello_ranks: rank {self.rank} on {socket.gethostname()}"
            wrong = [f for f in self.found if f.level != "ok"]
            say(*(f"{who}, {f.check}: {f.what}\n    → {f.fix}" for f in wrong))
        self.exit(1)

    def show(self):
        """Print the table."""
        who = f"WORLD_SIZE {self.me['WORLD_SIZE']}, started by {self.me['launcher']}"
        lines, found = [f"hello_ranks: {who}"], {check: {} for check in CHECKS}
        for check, ranks, *same in self.found:  # ranks that found the same share a line
            found[check].setdefault(tuple(same), []).extend(ranks)
        for check, each in found.items():
            texts, levels = [], ["ok", *(level for _, _, level in each)]
            for (what, fix, level), ranks in list(each.items())[:9]:
                if level != "ok":
                    texts = [text for text in texts if text != f"→ {fix}"]  # below the last
                    texts += [f"{spans(ranks)}: {what}", f"→ {fix}"]
                elif check == "ranks" or "WRONG" not in levels:
                    texts.append(what)
            left = f"{check:<18}{max(levels, key='okwarnWRONG'.find):<7}"
            for text in texts:
                lines += textwrap.wrap(left + text, 94, subsequent_indent=" " * 27)
                left = " " * 25
        if ahead := ", ".join(check for check, each in found.items() if not each):
            lines += textwrap.wrap(f"not checked: {ahead}", 94)
        every = [level for each in found.values() for _, _, level in each]
        wrong, warned = every.count("WRONG") or "nothing", every.count("warn")
        say(*lines, f"{wrong} wrong" + f", {warned} to look at" * (warned > 0))

    def exit(self, code):
        """End this process; rank 0, which may hold the store, ends last."""
        threading.Timer(3, os._exit, [code]).start()  # however the store behaves
        with suppress(TypeError, AttributeError, dist.DistError):  # without a store, at once
            others = self.me["WORLD_SIZE"] - 1 - len(self.waiting)
            left = self.store.add("left", int(self.rank > 0))
            while self.rank == 0 and left < others:
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
    me, found = variables(os.environ)
    run, patience = Run(me, found, args.patience), args.patience
    signal.signal(signal.SIGTERM, run.stopped)
    if found:
        run.report()
    text = f"RANK, WORLD_SIZE={me['WORLD_SIZE']}, MASTER_ADDR={me['address']}, …"
    run.found.append(fine("variables", text))
    me["ip"] = run.alone("rendezvous", lambda: reach(me, patience))
    store = run.alone("rendezvous", lambda: meet(me, patience))
    host = "torchrun" if me["agent"] else "rank 0"
    text = f"the store of {host} at {me['ip']} port {store.port}"
    run.found.append(fine("rendezvous", text))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # the store outlives it
    second = store.clone()  # a waiting call locks its connection, so the checks get another
    run.store, store = (dist.PrefixStore(attempt, each) for each in (second, store))
    run.alone("ranks", lambda: arrive(me, store))

    cuda = torch.cuda.is_available()
    sizes = args.mib or ([1024, 4096] if cuda else [64])

    def connected(_):
        hosts = len(group(facts, "host"))
        text = f"{hosts} machines reach each other at any port" if hosts > 1 else "one machine"
        yield fine("connections", text)

    def joined(_):
        yield fine("process group", "gloo and NCCL" if cuda else "gloo")

    def small():
        gloo = {"gloo": all_reduce(me, 4096, torch.device("cpu"))}
        return gloo | ({"NCCL": all_reduce(me, 4096, device(me))} if cuda else {})

    def large():
        return {mib: all_reduce(me, int(mib * 2**20), device(me)) for mib in sizes}

    try:
        run.together("ranks", lambda: {"host": socket.gethostname()}, lambda _: ())
        facts = run.together("devices", lambda: collect(me), findings)
        run.together("clocks", lambda: compare_clocks(me, store, facts), clock_findings)
        run.together("connections", lambda: connect(me, store, patience), connected)
        run.together("process group", lambda: join(me, store, patience), joined)
        run.together("small all-reduce", small, latency)
        run.together("large all-reduce", large, rates)
    except dist.DistError as error:
        fix = "the process that held it has ended: read its output"
        run.report(Finding(run.check, [run.rank], f"the store is gone: {error}", fix))
    if run.rank == 0:
        run.show()
    run.exit(0)


if __name__ == "__main__":
    main()
