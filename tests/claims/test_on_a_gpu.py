"""The step on a GPU, as far as it can be shown without one: what asks for a value, what counts as work, what is set."""

import pytest
import torch
from proof import proves
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils._python_dispatch import TorchDispatchMode  # private: sees every operator, seen in torch 2.13
from torch.utils.flop_counter import FlopCounterMode

from ddplab import device, launch


class ValuesAsked(TorchDispatchMode):
    """Counts the operators that hand the value of a tensor to Python; on a GPU each waits for the device."""

    def __init__(self):
        super().__init__()
        self.times = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.times += str(func) == "aten._local_scalar_dense.default"
        return func(*args, **(kwargs or {}))


def asked(line):
    """How many values the call of ``line`` asked for."""
    with ValuesAsked() as counted:
        line()
    return counted.times


@proves("gpu-lines-that-ask-for-a-value")
def test_which_lines_ask_for_a_value():
    """Warm steps of two ranks, and the lines that stand around them."""

    def worker():
        torch.manual_seed(0)
        ddp = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(device()))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
        scaler = torch.amp.GradScaler(device().type, init_scale=2.0)
        x = torch.randn(5, 8, device=device())
        total = torch.zeros((), device=device())

        def step():
            optimizer.zero_grad()
            loss = ddp(x).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
            optimizer.step()
            total.add_(loss.detach())
            return loss.detach()

        for _ in range(3):
            loss = step()
        found = {"step": asked(step), "item": asked(lambda: loss.item()), "float": asked(lambda: float(loss))}
        found |= {"if": asked(lambda: "high" if loss > 3 else "low"), "any": asked(lambda: torch.isnan(loss).any())}
        for name, used in (("", optimizer), (", fused", torch.optim.AdamW(ddp.parameters(), fused=True))):
            used.zero_grad()
            scaler.scale(ddp(x).square().mean()).backward()
            scaler.unscale_(used)
            found[f"scaler.step{name}"] = asked(lambda used=used: scaler.step(used))
            found[f"scaler.update{name}"] = asked(scaler.update)
        return found

    for found in launch(worker, 2):
        assert found == {
            "step": 0,
            "item": 1,
            "float": 1,
            "if": 1,
            "any": 0,
            "scaler.step": 1,
            "scaler.update": 0,
            "scaler.step, fused": 0,
            "scaler.update, fused": 0,
        }


class Block(nn.Module):
    """One layer of a transformer without biases: attention, written out and without a mask, and a feed-forward part."""

    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        x = x + self.out((q @ k.transpose(1, 2)).softmax(-1) @ v)
        return x + self.down(self.up(x).relu())


@proves("gpu-six-flops-per-weight-and-token")
@pytest.mark.parametrize(("layers", "width", "sequence"), [(1, 16, 8), (3, 32, 24)])
def test_six_operations_per_weight_and_token(layers, width, sequence):
    """Torch's count on two ranks, the layers behind an embedding, against 6ND and the term of attention."""

    def worker():
        torch.manual_seed(0)
        body = nn.Sequential(nn.Embedding(10, width), *(Block(width) for _ in range(layers))).to(device())
        ddp, tokens = DDP(body), torch.randint(10, (2, sequence), device=device())
        with FlopCounterMode(display=False) as forward:
            loss = ddp(tokens).square().mean()
        with FlopCounterMode(display=False) as backward:
            loss.backward()
        weights = sum(p.numel() for p in body[1:].parameters())
        return forward.get_total_flops(), backward.get_total_flops(), weights, tokens.numel()

    for forward, backward, weights, tokens in launch(worker, 2):
        attention = 12 * layers * sequence * width * tokens
        assert forward + backward == 6 * weights * tokens + attention
        assert backward == 2 * forward


@proves("gpu-tf32-defaults")
def test_what_float32_means_by_default():
    """The settings of a fresh process."""

    def worker():
        import torch  # of the fresh process: a global one is pickled with its backends, which cannot be

        return (
            torch.get_float32_matmul_precision(),
            torch.backends.cuda.matmul.allow_tf32,
            torch.backends.cudnn.allow_tf32,
        )

    (found,) = launch(worker, 1)
    assert found == ("highest", False, True)
