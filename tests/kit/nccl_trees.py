"""The two binary trees of NCCL's all-reduce."""


def nccl_trees(ranks: int) -> list[dict[int, int | None]]:
    """The parent of each rank in both, by NCCL's rule of bits (trees.cc: ncclGetBtree, ncclGetDtree)."""
    first: dict[int, int | None] = {0: None}
    for rank in range(1, ranks):
        bit = rank & -rank
        up = (rank ^ bit) | (bit << 1)
        first[rank] = up if up < ranks else rank ^ bit

    def other(rank: int) -> int:  # the second tree is the mirrored or the shifted first
        return (rank + 1) % ranks if ranks % 2 else ranks - 1 - rank

    return [first, {other(rank): None if up is None else other(up) for rank, up in first.items()}]
