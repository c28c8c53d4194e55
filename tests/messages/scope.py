"""Which sources hold messages that a user of DDP can meet, and which of their messages that user does not."""

from __future__ import annotations

import re

C10D = r"torch/(?:lib/c10d|csrc/distributed/c10d)/(?:control_plane/)?"
FILES = {
    "torch-cpp": C10D
    + r"(?:ProcessGroup(?:NCCL|Gloo|GlooCuda|GlooDetail|Wrapper)?|NCCLUtils|GlooDeviceFactory|TCPStore\w*"
    r"|socket|\w+SockUtils|Utils|FileStore|HashStore|PrefixStore|Store|reducer|comm|logger|"
    r"default_comm_hooks|init|Backend"
    r"|Ops|Work|Types|error|exception|TraceUtils|FlightRecorder\w*|NanCheck|debug|GroupRegistry|sequence_num)"
    r"\.(?:cpp|hpp|cu|h)|torch/csrc/DataLoader\.cpp|torch/csrc/cuda/(?:Module|nccl|python_nccl|comm)\.cpp"
    r"|c10/cuda/CUDA(?:Functions|Exception|CachingAllocator|MiscFunctions|DeviceAssertionHost|Stream|"
    r"AllocatorConfig)"
    r"\.(?:cpp|h)|aten/src/(?:ATen/MapAllocator|TH/THAllocator)\.cpp",
    "torch-python": r"torch/nn/parallel/distributed\.py|torch/nn/modules/_functions\.py|"
    "torch/utils/data/(?:dataloader"
    r"|distributed|sampler|dataset|_utils/\w+)\.py|torch/distributed/(?:distributed_c10d|rendezvous|run|"
    r"launch|constants"
    r"|utils|device_mesh|logging_handlers|c10d_logger|launcher/\w+|elastic/[\w/]+"
    r"|algorithms/(?:join|ddp_comm_hooks/\w+))\.py|torch/cuda/(?:__init__|_utils|memory|nccl)\.py"
    r"|torch/multiprocessing/\w+\.py|torch/(?:cuda/)?amp/\w+\.py",
    "nccl": r"src/(?!.*(?:device|collectives/device|bindings|examples)/).*\.(?:cc|cu|h)",
    "gloo": r"gloo/(?!test/|examples/|benchmark/)[\w/]+\.(?:cc|h)",
}

# Reason, file, text: the first that fits counts.
APART = [
    ("an assert inside torch; one entry knows their common words", "#assert", ""),
    (
        "an assert inside torch; one entry knows their common words",
        r"\.py$",
        r"scripting mode|_get_scale_async|_growth_tracker initialized|_scale is None in|"
        r"_scale should not be None|expected param to be|"
        r"alloc_fn|free_fn|All-reduce future for|Bucket ind|Bucket \{\} should|assigned_ranks_per_bucket|"
        r"Mismatch in return ranks|"
        r"group name should be set|group_(?:desc|name) must not|[Ll]ogger must not be None|"
        r"should be set by now|previous_handler|"
        r"final signal but|iteration seed|shared_seed|return_data|Invalid iterator state|outstanding tasks|"
        r"sharding worker init|"
        r"status inconsistent|_workers_done_event|instance of IterDataPipe|requires timeout == 0|"
        r"Tracing requires|too many keys \{\} vs|"
        r"sharing strategy|(?:reduce_ex|getstate)_hook|DataPipe function",
    ),
    ("not called by DDP: managed memory", r"torch/cuda/memory\.py", "_use_uvm"),
    (
        "not called by DDP: shrinking a group",
        r"distributed_c10d\.py",
        r"shr[iu]nk|exclu|out of bounds for group size|fully clean up",
    ),
    (
        "not called by DDP: kernels compiled at run time",
        r"torch/cuda/_utils\.py",
        r"ernel|NVRTC|PCH|bindings|shared memory|argument",
    ),
    ("Windows only", r"redirects\.py|WinSockUtils", r"CRT|C-runtime|C runtime|connect failed"),
    (
        "not called by DDP: DataParallel's copies, torch.cuda.nccl, bindings",
        r"torch/csrc/cuda/|torch/cuda/nccl\.py",
        "",
    ),
    ("not called by DDP: meshes of DTensor and FSDP", r"device_mesh\.py", ""),
    ("NCCL for Windows, which torch does not use", r"src/os/windows", ""),
    (
        "not called by DDP: NCCL's device, one-sided, suspend and grow functions, and its RAS client",
        r"src/",
        r"MemManager|GIN|Gin\b|\bRMA\b|ncclRma|Rma |RAS |ncclCommGrow|bcastGrow|nccl(?:Put|Wait)?Signal|"
        r"suspend|resume|"
        r"symmetric (?:memory|registration)|ymmetric(?:Task| kernel)|PARAM:|must be 0\)|[Ww]indow |LSA|"
        r"lsaRank|Multimem|"
        r"Multicast support|MCBasePtr|ncclDev|NCCL_DEV_COMM|NCCL_COMM_PROP|shared contexts|GDAKI|"
        r"physical segments|Elastic|"
        r"Dev comm not|client status",
    ),
    ("not called by DDP: NCCL's other interfaces", r"src/(?:.*/)?(?:gin|rma|ras|dev_runtime|gdaki|windows|param)", ""),
    (
        "gloo's parts that torch does not build",
        r"gloo/(?:transport/ibverbs|rendezvous/redis|mpi/|cuda|nccl/|common/win)",
        "",
    ),
    (
        "a part of other messages",
        r"",
        r"^WorkNCCL\((?:SeqNum|OpType)=[^)]*\)?|^\[PG ID|^\[PG |^TCPStore\(client|^Sequence number: \{\}vs|"
        r"^has \{\} memory in use|"
        r"^Including non-PyTorch memory|^\. This may indicate|^\{\}\nOriginal exception|^\[Rank \{\}\]$|"
        r"^Memory region|^Hash of|"
        r"^could not find \{\}$|^(?:Could not find|invalid device) pointer|^filename not specified|"
        r"^unsupported protocol|"
        r"^(?:internal error|invalid argument|invalid usage|unknown result code|NCCL operation in progress|"
        r"Unexpected error|"
        r"Internal error|Invalid argument|Invalid usage|Unhandled CUDA error|Remote process error)$",
    ),
    (
        "a check of a private function, or of one that training does not call",
        r"",
        r"not implemented|ALLOCATOR_MAPPED|base_ptr_ is null|_set_worker_pids|setting handler for|"
        r"worker information for|"
        r"checkpointing block|checkpointed block|to checkpoint|set checkpoint|pool of id|pool id|mempool_id|"
        r"PrivatePool|does not yet support|invalid device pointer|lock after cudaMalloc|never been called|"
        r"must be positive!|stream priority|compiled max number|enableCollectivesTiming|[oO]nCompletion|"
        r"waitForPendingWorks|"
        r"getDuration|getSequence|getError|MemAllocator|allocateTensor|signalOp|GIL checker|valid future|"
        r"launched eagerly|Invalid size for ncclUniqueId|non-zero color|"
        r"Color must be|Tensor options must|Unknown exception type|isSuccess|watchKey only|IntraNodeComm|"
        r"Invalid state|"
        r"assertion failed|libcudart functions|Not available for CUDA storage|debug_mode|dummy base class|"
        r"Invalid peer device|"
        r"type for stream|str or bytes|urllib cannot|old_prefix|has no attribute '|CrossMapLRN2d|"
        r"calling result\(\)|list of lists|"
        r"Invalid backend$|support (?:append|add|multi_[gs]et)|already set$|NotImplemented|device UUIDs$|"
        r"GetXmlFromCpu",
    ),
]


def apart(file: str, kind: str, text: str) -> str:
    """Why a user of DDP does not meet the message; empty if that user can."""
    for reason, files, texts in APART:
        if files == "#assert" and kind == "assert":
            return reason
        if files != "#assert" and re.search(files, file) and (re.search(texts, text) if texts else True):
            return reason
    return ""
