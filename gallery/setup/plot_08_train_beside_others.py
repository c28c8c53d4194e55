"""
train.py beside the plain loop and Accelerate
=============================================

What do the votes, the clipping and the logging of ``train.py`` cost?
Its step is timed beside the bare DDP loop of tutorials, and beside Accelerate where that is installed.
It serves :ref:`setup-recipe`.

:Level: evidence, 10 minutes
"""

# %%
# All three train the same model on the same text, with the same batch and AdamW, in the same two processes, and all-reduce gradients in the group that ``train.py`` makes for them: of NCCL on GPUs, of gloo without.
# The loop of a tutorial has a sampler, a wrapper and five lines.

import importlib.util
import itertools
import statistics
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from ddplab import device, launch, record
from ddplab.apparatus.recipes import FOLDER
from ddplab.runtime.clock import now
from ddplab.runtime.needs import a_gpu_each

RANKS, STEPS, WARM = 2, 40, 5


def tutorial(data, model, args, gradients):
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch // dist.get_world_size(), sampler=sampler)
    ddp = DistributedDataParallel(model.to(device()), process_group=gradients)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=args.lr)
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        for batch in loader:
            codes, labels = batch["codes"].to(device()), batch["labels"].to(device())
            optimizer.zero_grad()
            loss = cross_entropy(ddp(codes).flatten(0, 1), labels.flatten())
            loss.backward()
            optimizer.step()
            yield


# %%
# Accelerate wraps model, optimizer and loader, and the loop keeps its lines.
# It has no option for the group of gradients, so the lab hands it to the wrapper past it.


def accelerate(data, model, args, gradients):
    from accelerate import Accelerator, DistributedDataParallelKwargs

    options = DistributedDataParallelKwargs()
    options.to_kwargs = lambda: {
        "process_group": gradients
    }  # it knows no option for the group
    accelerator = Accelerator(cpu=device().type == "cpu", kwargs_handlers=[options])
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loader = DataLoader(data, args.batch // dist.get_world_size(), shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    while True:
        for batch in loader:
            optimizer.zero_grad()
            logits = model(batch["codes"]).flatten(0, 1)
            loss = cross_entropy(logits, batch["labels"].flatten())
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
            yield


# %%
# ``train.py`` runs as it is, all of its ``main()``.
# At the end of each step it asks all ranks whether to stop; here, once that question is answered, each of the others takes a step.
# So the three take turns, and whatever slows the machine slows all of them.


def worker(recipes, out, contenders):
    sys.path.insert(0, recipes)
    import train

    sys.argv = ["train.py", "--out", out, f"--steps={STEPS}", "--precision=fp32"]
    times, others, turn = {"train.py": []}, {}, itertools.count()
    ask, began = train.any_rank, now()

    def ask_then_others(mine):
        nonlocal began
        answer = ask(mine)
        times["train.py"].append(now() - began)
        if not others:  # train.py asks for the first time after its first step
            args, _ = train.parse_flags()
            gradients = train.kept[0]  # made by its setup_ddp()
            for contender in contenders:
                data, _, model = train.from_text(args)
                others[contender.__name__] = contender(data, model, args, gradients)
                times[contender.__name__] = []
        for name in sorted(others, reverse=next(turn) % 2 == 1):
            began = now()
            next(others[name])
            times[name].append(now() - began)
        began = now()
        return answer

    train.any_rank = ask_then_others
    train.main()
    return {name: steps[WARM:] for name, steps in times.items()}


found = importlib.util.find_spec("accelerate") is not None
contenders = [tutorial, accelerate] if found else [tutorial]
with tempfile.TemporaryDirectory() as out:
    job = str(FOLDER), out, contenders
    ranks = launch(worker, RANKS, *job, init=False, quiet=True, env=a_gpu_each(RANKS))

# %%
# The ratio is computed for each turn, between two steps that ran one after the other, and the median over all turns is shown.

times = ranks[0]
print(f"{RANKS} ranks         ms per step   ratio to the tutorial's (middle half)")
for name, steps in times.items():
    ratios = [mine / plain for mine, plain in zip(steps, times["tutorial"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    ms = 1000 * statistics.median(steps)
    print(f"{name:12} {ms:13.1f} {middle:11.2f}   ({low:.2f} – {high:.2f})")
    if name == "train.py":
        record(ratio=middle)
if not found:
    print("accelerate is not installed here: pip install accelerate")

# %%
# What to notice
# --------------
#
# - One step of ``train.py`` takes :measured:`train-beside-others.ratio:.2f` times one of the tutorial's.
#   In return it clips, schedules, adds up the loss and asks every rank whether to stop.
#   The middle half of the turns shows how much of the difference is noise.
# - All three call the same ``DistributedDataParallel``: what a library adds is around it.
#
# What this does not mean
# -----------------------
#
# That one of them is faster for your model: with a larger one the step grows and what is around it does not.
