"""Where torch.compile cuts the graph of a DDP model."""

import torch
from patience import launch
from proof import proves
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddplab import device
from ddplab.buckets import MIB, assign
from ddplab.runtime.torch_private import ddp_facts


class Stack(nn.Module):
    """Five layers of 1 MiB each; a bare nn.Sequential would not be captured."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512, bias=False) for _ in range(5))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@proves("compile-splits-at-buckets")
def test_graphs_end_where_the_greedy_rule_closes_a_bucket():
    """A backend that compiles nothing counts the layers of each graph, at the default and at explicit caps."""

    def worker(cap_mib, compile_first=False):
        torch.compiler.reset()
        graphs = []

        def note(graph, inputs):
            graphs.append(sum("linear" in str(node.target) for node in graph.graph.nodes))
            return graph.forward

        stack = Stack().to(device())
        if compile_first:
            stack.compile(backend=note)
        ddp = DistributedDataParallel(stack, bucket_cap_mb=cap_mib)
        compiled = ddp if compile_first else torch.compile(ddp, backend=note)
        for _ in range(3):
            compiled(torch.ones(2, 512, device=device())).sum().backward()
        return graphs, len(ddp_facts(ddp)["rebuilt_bucket_sizes"].split(", "))

    caps_mib = (None, 1, 2)
    for found, compiled_first in launch(
        lambda: ([worker(cap_mib) for cap_mib in caps_mib], [worker(cap_mib, True) for cap_mib in caps_mib]),
        2,
        quiet=True,
    ):
        assert compiled_first == found
        for cap_mib, (graphs, buckets) in zip(caps_mib, found, strict=True):
            rule = assign([MIB] * 5, cap_bytes=(cap_mib or 25) * MIB, first_cap_bytes=MIB)
            assert graphs == [len(group) for group in reversed(rule)]
            if cap_mib is None:
                assert len(graphs) == buckets == 2
