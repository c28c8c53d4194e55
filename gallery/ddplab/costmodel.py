"""The public address of the cost model, which stands in :mod:`ddplab.model`."""

from .model.cluster import Cluster as Cluster
from .model.fit import fit_link as fit_link
from .model.link import ALGORITHMS as ALGORITHMS
from .model.link import GLOO_SEGMENT_BYTES as GLOO_SEGMENT_BYTES
from .model.link import Link as Link
from .model.link import allreduce_seconds as allreduce_seconds
from .model.link import bus_bandwidth as bus_bandwidth
from .model.nccl import NcclChoice as NcclChoice
from .model.nccl import nccl_choice as nccl_choice
from .model.step import Gradient as Gradient
from .model.step import Network as Network
from .model.step import Step as Step
from .model.step import Transfer as Transfer
from .model.step import bucketed as bucketed
from .model.step import equal_layers as equal_layers
from .model.step import simulate_step as simulate_step
