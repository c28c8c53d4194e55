"""Train a model with DistributedDataParallel: on a laptop, a GPU server or a cluster.

    python train.py                                     one process
    torchrun --standalone --nproc-per-node 2 train.py   two on this machine
    srun python train.py                                as many as Slurm starts

Exit codes: 0 the training is complete; 75 a signal came and the state is saved, so run
the same command again; 2 refused, and one line of rank 0 gives the reason; 1 a crash.
"""

import argparse
import atexit
import math
import os
import resource
import signal
import socket
import sys
import time
import warnings
from contextlib import closing, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn, profiler
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, StackDataset, Subset

try:
    from ddplab.checkpoint import CheckpointError, CheckpointManager
except ImportError:  # the kit is not installed
    from checkpoint import CheckpointError, CheckpointManager  # its file, copied beside this

REFUSED, SAVED = 2, 75  # 75 is EX_TEMPFAIL of sysexits.h: nothing is wrong, try again
STOP = (signal.SIGTERM, signal.SIGUSR1)
TERMINAL = 79 if sys.stdout.isatty() else 0  # columns, for lines that overwrite others
signals = []  # those of STOP as they come: Slurm and torchrun may each send one
kept = []  # the groups, until everything else is gone: see leave()
FREE = ["out", "resume", "log_every", "save_every", "workers", "profile", "accumulate"]
FREE += ["timeout", "vote_timeout", "vote_every"]  # flags that a resumed run may change


def setup_ddp(args):
    """Join the process group; return the device of this rank and the group for gradients."""
    for number in STOP:
        signal.signal(number, lambda number, _: signals.append(number))
    env, alone = os.environ, {}
    if "RANK" not in env and "SLURM_STEP_NUM_TASKS" in env:  # srun without torchrun
        env["RANK"], env["LOCAL_RANK"] = env["SLURM_PROCID"], env["SLURM_LOCALID"]
        env["WORLD_SIZE"] = env["SLURM_STEP_NUM_TASKS"]
        env.setdefault("MASTER_PORT", str(20000 + int(env["SLURM_JOB_ID"]) % 10000))
        if env["SLURM_STEP_NUM_NODES"] == "1":  # else the batch script sets the address
            env.setdefault("MASTER_ADDR", "127.0.0.1")
    elif "RANK" not in env:  # no launcher: a group of one, which needs no address
        alone = {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.is_available():
        # Where Slurm shows each rank only its own GPU, that GPU has number 0.
        local = int(env.get("LOCAL_RANK", 0)) % torch.cuda.device_count()
        device, backend = torch.device("cuda", local), "nccl"
        torch.cuda.set_device(device)  # first, or every rank allocates memory on GPU 0
    # Votes and messages go through gloo, which waits for no GPU; gradients have a group of
    # their own, with a shorter timeout: nobody saves or loads while others wait in it.
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.vote_timeout), **alone)
    gradients = dist.new_group(backend=backend, timeout=timedelta(seconds=args.timeout))
    kept.append(gradients)
    return device, gradients


def one_gpu_each(device):
    """Refuse two ranks on one GPU, before NCCL does it in many lines; call it on all ranks."""
    place = (socket.gethostname(), str(torch.cuda.get_device_properties(device).uuid))
    places = [None] * dist.get_world_size()
    dist.all_gather_object(places, place)
    with agreed():
        if len(set(places)) < len(places):
            here, gpus = socket.gethostname(), torch.cuda.device_count()
            refuse(f"more ranks than GPUs: {here} has {gpus}, so start {gpus} ranks there")


def say(text, file=None, end="\n"):
    """Print, on rank 0 only."""
    if dist.get_rank() == 0:
        print(text.ljust(TERMINAL), file=file, end=end, flush=True)


def leave(code):
    """End the program, on all ranks together."""
    dist.all_reduce(torch.zeros(1))
    # gloo's threads may still have objects to free, for which they need Python's lock. The
    # groups wait for them when they are freed: not by DDP, which would hold that lock.
    kept.append(dist.group.WORLD)
    atexit.register(kept.clear)
    dist.destroy_process_group()
    sys.exit(code)


def any_rank(mine):
    """Whether it is true on any rank. The vote is a CPU tensor: it waits for no GPU."""
    vote = torch.tensor(int(bool(mine)))
    dist.all_reduce(vote, dist.ReduceOp.MAX)
    return bool(vote)


@contextmanager
def agreed():
    """All ranks get through this block or all exit: none waits for one that failed in it."""
    problem = None
    try:
        yield
    except Exception as error:
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        problem = " ".join(f"{kind}{error}".split())  # one line
    problems = [None] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    for rank, problem in enumerate(problems):
        if problem:
            say(f"train.py: error on rank {rank}: {problem}", sys.stderr)
            leave(REFUSED)


def refuse(message):
    """Report what the user can fix; use it inside ``agreed``."""
    raise ValueError(message)


def parse_flags():
    """The flags, and what is wrong with them: to be said when all ranks are there."""
    parser = argparse.ArgumentParser(description="Train a model with DDP.")
    parser.error, rank = refuse, os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))
    parser.print_help = lambda: print(parser.format_help() if rank == "0" else "", end="")
    add = parser.add_argument
    add("--dataset", choices=["text", "mrpc"], default="text")
    add("--data", type=Path, default=Path(__file__).with_name("data") / "collectives.txt")
    add("--model", default="small", help="small, or hf:NAME for a model of the hub")
    add("--context", type=int, default=64, help="letters or tokens in a sample")
    add("--width", type=int, default=128)
    add("--layers", type=int, default=3)
    add("--dropout", type=float, default=0.1)
    add("--batch", type=int, default=32, help="samples in a step, over all ranks")
    add("--accumulate", type=int, default=1, help="micro-batches in a step")
    add("--steps", type=int, default=200)
    add("--lr", type=float, default=3e-3)
    add("--warmup", type=int, default=20, help="steps until the full learning rate")
    add("--clip", type=float, default=1.0, help="largest norm of the gradient")
    add("--seed", type=int, default=0)
    usual = "bf16" if torch.cuda.is_available() else "fp32"
    add("--precision", choices=["fp32", "bf16", "fp16"], default=usual)
    add("--out", type=Path, default="runs/train", help="folder of the checkpoints")
    add("--resume", choices=["auto", "must", "never"], default="auto")
    add("--log-every", type=int, default=10)
    add("--save-every", type=int, default=50, help="steps between saves and evaluations")
    add("--workers", type=int, default=0, help="processes per rank that read data")
    add("--fused", action="store_true", help="one kernel for the whole step of AdamW")
    add("--compile", action="store_true", help="torch.compile; its first step takes minutes")
    how = {"type": float, "default": 600.0, "metavar": "SECONDS"}
    add("--timeout", **how, help="end the run if a rank waits longer for another's gradients")
    what = "the same for messages and votes, which also wait for a rank that loads or saves"
    add("--vote-timeout", **{**how, "default": 1800.0}, help=what)
    add("--vote-every", type=int, default=1, help="steps between votes on stopping")
    add("--profile", type=Path, help="folder for a trace of four steps of each rank")
    try:
        return parser.parse_args(), None
    except ValueError as error:
        return parser.parse_args([]), error


def check_flags(args):
    """What is wrong with the flags as far as it shows without the data."""
    for name, value in vars(args).items():
        least = 0 if name in ("dropout", "seed", "workers") else 1e-12
        if type(value) in (int, float) and not value >= least:
            refuse(f"--{name.replace('_', '-')} {value} is too small")
    parts = dist.get_world_size() * args.accumulate
    if args.batch % parts:
        refuse(f"--batch {args.batch} is not a multiple of {parts}, ranks × --accumulate")
    if args.model != "small" if args.dataset == "text" else not args.model.startswith("hf:"):
        refuse("--model small goes with --dataset text, --model hf:NAME with --dataset mrpc")


def from_text(args):
    """Training set, validation set, model: blocks of letters, and each letter's next one."""
    text = args.data.read_text(encoding="utf-8")
    if len(text) <= args.context:
        refuse(f"--data {args.data} has {len(text)} letters, too few for one sample")
    code = {letter: i for i, letter in enumerate(sorted(set(text)))}
    codes = torch.tensor([code[letter] for letter in text])
    blocks = codes.unfold(0, args.context + 1, args.context)  # each ends where the next begins
    parts = blocks.tensor_split([len(blocks) * 9 // 10])  # the last tenth is for validation
    train, valid = (StackDataset(codes=p[:, :-1], labels=p[:, 1:]) for p in parts)
    return train, valid, SmallTransformer(len(code), args)


class SmallTransformer(nn.Module):
    """Scores for the letter that follows each letter: (batch, context, number of letters)."""

    def __init__(self, letters, args):
        super().__init__()
        width = args.width
        how = {"activation": "gelu", "batch_first": True, "norm_first": True}
        self.letter = nn.Embedding(letters, width)
        self.place = nn.Embedding(args.context, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, args.dropout, **how)
            for _ in range(args.layers)
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, letters))

    def forward(self, codes):  # noqa: D102
        # The mask is not a buffer of the model: DDP would send it before every forward.
        mask = nn.Transformer.generate_square_subsequent_mask(codes.shape[1], codes.device)
        x = self.letter(codes) + self.place.weight[: codes.shape[1]]
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.head(x)


def from_hub(args):
    """Training set, validation set, model: do two sentences of MRPC mean the same?"""
    from datasets import load_dataset
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    name = args.model.removeprefix("hf:")
    model = AutoModelForSequenceClassification.from_pretrained(name, num_labels=2)
    tokenizer = AutoTokenizer.from_pretrained(name)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token  # GPT-2's has none
    model.config.pad_token_id = tokenizer.pad_token_id
    pairs = load_dataset("nyu-mll/glue", "mrpc")

    def tokens(part):
        first, second = list(part["sentence1"]), list(part["sentence2"])
        room = {"padding": "max_length", "truncation": True, "max_length": args.context}
        inputs = tokenizer(first, second, return_tensors="pt", **room)
        return StackDataset(**inputs, labels=torch.tensor(list(part["label"])))

    return tokens(pairs["train"]), tokens(pairs["validation"]), model


class Loader(DataLoader):
    """Its workers never see the signals of STOP, which are for the ranks.

    torchrun and Slurm send them to every process, and a rank whose worker dies of one
    crashes instead of saving. A process inherits what is blocked when it is started.
    """

    def __iter__(self):  # noqa: D105
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
        try:
            return super().__iter__()  # starts the workers
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def batches(train, loader, args, step):
    """The micro-batches of this rank, without end, from the one after this step."""
    share, steps_per_epoch = args.batch // dist.get_world_size(), len(train) // args.batch
    sampler = DistributedSampler(train, seed=args.seed, drop_last=True)
    epoch, done = divmod(step, steps_per_epoch)
    while True:
        sampler.set_epoch(epoch)  # without it every epoch has the order of the first
        # After a resume, only the rest of this epoch: the samples before it are not even read.
        yield from loader(train, sampler=list(sampler)[done * share : steps_per_epoch * share])
        epoch, done = epoch + 1, 0


@contextmanager
def checkpointing():
    """All ranks exit if one cannot save or load: the manager gives all of them the reason."""
    try:
        yield
    except CheckpointError as error:
        say(f"train.py: {' '.join(str(error).split())}", sys.stderr)
        leave(REFUSED)


def predict(model, batch, device, autocast):
    """Scores of one batch, (predictions, classes), and its labels, (predictions,)."""
    batch = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
    labels = batch.pop("labels").flatten()
    with autocast():
        scores = model(**batch)
    scores = getattr(scores, "logits", scores)  # a model of the hub wraps its scores
    return scores.float().flatten(0, -2), labels


def peak_gib(device):
    """The most memory that this rank has held: tensors on its GPU, or all of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    unit = 1 if sys.platform == "darwin" else 2**10  # of ru_maxrss
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


class Trainer:
    """All that a step, a line of the log and a save need, and what they change."""

    def __init__(self, args, device, group, model, config):
        self.args, self.device, self.group, self.model = args, device, group, model
        kind = {"lr": args.lr, "fused": args.fused or None}
        self.optimizer = torch.optim.AdamW(model.parameters(), **kind)

        def part_of_lr(step):  # up along a line, then down to zero along half a cosine
            left = (args.steps - step) / max(1, args.steps - args.warmup)
            return min((step + 1) / args.warmup, (1 - math.cos(math.pi * min(1, left))) / 2)

        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, part_of_lr)
        fp16, half = args.precision == "fp16", args.precision != "fp32"
        # bf16 has the range of fp32. fp16 does not: its loss is scaled, or gradients vanish.
        self.scaler = torch.amp.GradScaler(device.type, enabled=fp16)
        kind = torch.float16 if fp16 else torch.bfloat16
        self.autocast = partial(torch.autocast, device.type, kind, enabled=half)
        # The wrapper trains, the model is saved: no name in a checkpoint begins with "module."
        how = {"process_group": group, "gradient_as_bucket_view": True}
        how["device_ids"] = [device] if device.type == "cuda" else None
        self.forward = self.ddp = DistributedDataParallel(model, **how)
        if args.compile:
            self.forward = torch.compile(self.ddp)  # its graphs end where buckets do
        self.manager = CheckpointManager(args.out, keep=3)
        self.state = {"model": model, "optimizer": self.optimizer, "config": config}
        self.state |= {"scheduler": self.scheduler, "scaler": self.scaler}

    def resume(self, any_loss):
        """Load what an earlier run left in the folder, or begin."""
        flag, folder, found = self.args.resume, self.args.out, None

        def fits(saved):  # of the newest complete checkpoint, before its weights are read
            for name, was in saved["config"].items():
                if was != (now := self.state["config"].get(name)):
                    text = f"{folder} belongs to another run: {name} was {was} and is {now}"
                    raise CheckpointError(text)

        if flag != "never":
            with checkpointing():
                found = self.manager.load(self.state, warm_up=any_loss, fits=fits)
        with agreed():
            there = list(folder.glob("step-*.pt"))
            if flag == "never":
                for path in there if dist.get_rank() == 0 else ():
                    path.replace(path.with_suffix(".old"))  # or they would be newer than ours
            elif not found and (there or flag == "must"):
                refuse(f"--resume {flag}: there is no complete checkpoint in {folder}")
        self.step, self.count, total = 0, 0, 0.0
        if found:
            self.step, self.count, total = found["step"], found["count"], found["total"]
            by = f"saved by {found['world_size']} ranks"
            say(f"resumed after step {self.step} from {folder}, {by}")
        total = total if dist.get_rank() == 0 else 0.0
        self.total = torch.tensor(total, device=self.device)
        self.begun, self.began = self.step, time.perf_counter()

    def loss(self, batch):
        """The mean loss of one batch."""
        return cross_entropy(*predict(self.forward, batch, self.device, self.autocast))

    def update(self, data):
        """Make one step."""
        args, scaler = self.args, self.scaler
        for left in reversed(range(args.accumulate)):
            # All but the last skip the all-reduce; no_sync must hold the forward too.
            with self.ddp.no_sync() if left else nullcontext():
                loss = self.loss(next(data)) / args.accumulate
                scaler.scale(loss).backward()
            self.total += loss.detach()
        scaler.unscale_(self.optimizer)  # the gradients are the mean over ranks now, and
        nn.utils.clip_grad_norm_(self.model.parameters(), args.clip)  # all clip the same way
        scale = scaler.get_scale()
        scaler.step(self.optimizer)
        scaler.update()
        self.optimizer.zero_grad()
        if scaler.get_scale() >= scale:  # else fp16 overflowed and the step was skipped
            self.scheduler.step()
        self.step, self.count = self.step + 1, self.count + 1

    def log(self):
        """Print a line: the loss of all ranks since the last one, the speed, the memory."""
        args, step = self.args, self.step
        dist.all_reduce(self.total, group=self.group)  # until now each rank knows its own
        loss = self.total.item() / dist.get_world_size() / self.count
        if not math.isfinite(loss):
            with agreed():  # rather than overwrite the last good checkpoint
                refuse(f"the loss is {loss} at step {step}")
        speed = args.batch * (step - self.begun) / (time.perf_counter() - self.began)
        rate = f"{speed * args.context:,.0f} tokens/s  {peak_gib(self.device):.2f} GiB"
        line = f"step {step:5}  loss {loss:.4f}  {rate}"
        if TERMINAL:
            line = f"{'█' * (20 * step // args.steps):░<20} {line}"
        say(line, end="\r" if TERMINAL else "\n")
        self.total, self.count = self.total * 0, 0
        self.begun, self.began = step, time.perf_counter()

    @torch.no_grad()
    def evaluate(self, valid, loader):
        """Mean loss and accuracy over the validation set, each sample counted once."""
        # DistributedSampler would repeat samples until all ranks have the same number. Here
        # some ranks may have one less, so the model is called, not its DDP wrapper.
        mine = Subset(valid, range(dist.get_rank(), len(valid), dist.get_world_size()))
        sums = torch.zeros(3, dtype=torch.float64, device=self.device)
        self.model.eval()
        for batch in loader(mine):
            scores, labels = predict(self.model, batch, self.device, self.autocast)
            sums[0] += cross_entropy(scores, labels, reduction="sum")
            sums[1] += (scores.argmax(dim=1) == labels).sum()
            sums[2] += len(labels)
        self.model.train()
        dist.all_reduce(sums, group=self.group)  # not means: they would weigh ranks
        return (sums[:2] / sums[2]).tolist()

    def save(self, valid, loader, stopping):
        """Evaluate, unless a signal asked to stop: then save and leave."""
        paused, step = time.perf_counter(), self.step
        if not stopping:  # before the save: if killed here, it is repeated
            loss, right = self.evaluate(valid, loader)
            say(f"step {step:5}  validation loss {loss:.4f}  accuracy {right:.1%}")
        dist.all_reduce(self.total, group=self.group)
        self.total *= dist.get_rank() == 0  # it keeps the sum of all, here and in the file
        unprinted = {"total": self.total.item(), "count": self.count}
        with checkpointing():
            self.manager.save({**self.state, **unprinted}, step)
        if stopping:
            say(f"stopped by a signal and saved after step {step}: run this again")
            leave(SAVED)
        self.began += time.perf_counter() - paused


@record  # torchrun's report then has the traceback of the rank that crashed first
def main():
    """Train."""
    warnings.formatwarning = lambda text, *_: f"train.py: warning: {text}\n"
    warnings.simplefilter("once", UserWarning)
    args, wrong = parse_flags()
    device, group = setup_ddp(args)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    with agreed():
        if wrong:
            raise wrong
        check_flags(args)
        args.out.mkdir(parents=True, exist_ok=True)
    if device.type == "cuda":
        one_gpu_each(device)
    torch.manual_seed(args.seed)  # the same model for any number of ranks
    with agreed():
        train, valid, model = (from_hub if args.dataset == "mrpc" else from_text)(args)
        if len(train) < args.batch or not len(valid):
            refuse(f"{len(train)} training samples are fewer than --batch {args.batch}")
    # A checkpoint belongs to this run if nothing that affects the numbers is different.
    config = {name: value for name, value in vars(args).items() if name not in FREE}
    config["data"] = [tensor.sum().item() for tensor in train.datasets.values()]
    trainer = Trainer(args, device, group, model.to(device), config)
    torch.manual_seed(args.seed + 1 + rank)  # other samples, other dropout
    micro = args.batch // ranks // args.accumulate
    # The start of an epoch draws a number: from this generator, not from the one of dropout.
    how = {"generator": torch.Generator(), "pin_memory": device.type == "cuda"}
    loader = partial(Loader, batch_size=micro, num_workers=args.workers, **how)
    # The first backward has a loss of its own, after which DDP rebuilds its buckets.
    trainer.resume(any_loss=lambda: trainer.loss(next(batches(train, loader, args, 0))))

    shares = f"{ranks} ranks × {args.accumulate} micro-batches × {micro} samples"
    say(f"{device.type}, {args.precision}: {args.steps} steps of {shares}")
    trace = nullcontext()
    if args.profile:
        plan = profiler.schedule(wait=3, warmup=2, active=4, repeat=1)
        write = profiler.tensorboard_trace_handler(args.profile, f"rank{rank}")
        trace = profiler.profile(schedule=plan, on_trace_ready=write)
    # Closed, or a crash would wait for workers that SIGTERM does not end.
    with trace, closing(batches(train, loader, args, trainer.step)) as data:
        while trainer.step < args.steps:
            trainer.update(data)
            if args.profile:
                trace.step()
            step, done = trainer.step, trainer.step == args.steps
            stop = (step % args.vote_every == 0 or done) and any_rank(signals)
            if step % args.log_every == 0 or done:
                trainer.log()
            if step % args.save_every == 0 or stop or done:
                trainer.save(valid, loader, stopping=stop and not done)
    say(f"complete after step {trainer.step}: {args.out}")
    leave(0)


if __name__ == "__main__":
    main()
