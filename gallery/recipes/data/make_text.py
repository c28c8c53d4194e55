"""Write collectives.txt, the text that train.py learns by default: python make_text.py

Short stories of ranks that share numbers. Their sums are right, so a model that has learned
to spell and to build a sentence can still get better by learning to count.
"""

import random
from pathlib import Path

TEXT = Path(__file__).with_name("collectives.txt")
CHARACTERS = 240_000
COUNT = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight"]

draw = random.Random(2024)


def listed(items: list) -> str:
    """3, 1 and 4"""
    return ", ".join(map(str, items[:-1])) + f" and {items[-1]}"


def ranks(n: int) -> str:
    """2: two ranks"""
    return f"{COUNT[n]} ranks"


def reduced() -> str:
    """A sum, or the largest or smallest of some numbers."""
    values = [draw.randint(0, 9) for _ in range(draw.randint(2, 4))]
    name, result = draw.choice(
        [("sum", sum(values)), ("largest", max(values)), ("smallest", min(values))]
    )
    start = f"{ranks(len(values)).capitalize()} hold {listed(values)}."
    end = draw.choice(
        [
            f"They call all_reduce for the {name}, and now each of them holds {result}.",
            f"After an all-reduce every rank knows the {name}: {result}.",
            f"A reduce to rank 0 leaves the {name}, {result}, there and nowhere else.",
        ]
    )
    return f"{start} {end}"


def averaged() -> str:
    """Gradients and their mean, which is a whole number."""
    n, mean = draw.randint(2, 4), draw.randint(1, 9)
    values = [mean] * n
    for _ in range(3):
        low, high = draw.sample(range(n), 2)
        by = draw.randint(0, values[low])
        values[low], values[high] = values[low] - by, values[high] + by
    return (
        f"Backward ends with the gradients {listed(values)} on {ranks(n)}. "
        f"DDP takes their mean, {mean}, and every rank makes the same step."
    )


def sent() -> str:
    """A broadcast, a hop in a ring, a barrier."""
    n, value = draw.randint(2, 8), draw.randint(0, 99)
    source = draw.randrange(n)
    ring = f"In a ring of {ranks(n)}"
    others = "the other rank" if n == 2 else f"the other {COUNT[n - 1]} ranks"
    return draw.choice(
        [
            f"Rank {source} of {COUNT[n]} broadcasts {value}, and {others} receive {value}.",
            f"{ring}, rank {source} sends {value} to rank {(source + 1) % n}.",
            f"{ring}, rank {source} hears {value} from rank {(source - 1) % n}.",
            f"The barrier waits for rank {source}. Once it has come, {others} go on too.",
        ]
    )


def shared() -> str:
    """A product: so many samples or rows on so many ranks."""
    n, each = draw.randint(2, 8), draw.randint(1, 16)
    return draw.choice(
        [
            f"A batch of {n * each} is split over {ranks(n)}, so each of them takes {each}.",
            f"Each of {ranks(n)} reads {each} samples. Together they read {n * each}.",
            f"{ranks(n).capitalize()} gather {each} rows each, and rank 0 has {n * each}.",
            f"To scatter {n * each} rows, rank 0 gives {each} to each of {ranks(n)}.",
        ]
    )


def placed() -> str:
    """A rank from its node and its local rank."""
    nodes, per_node = draw.randint(2, 8), draw.choice([2, 4, 8])
    node, local = draw.randrange(nodes), draw.randrange(per_node)
    return (
        f"On {COUNT[nodes]} nodes with {COUNT[per_node]} processes each, "
        f"local rank {local} of node {node} is rank {node * per_node + local} "
        f"of {nodes * per_node}."
    )


def gathered() -> str:
    """Numbers that are repeated as they were."""
    values = [draw.randint(0, 9) for _ in range(draw.randint(2, 4))]
    start = f"{ranks(len(values)).capitalize()} hold {listed(values)}."
    at = draw.randrange(len(values))
    return start + draw.choice(
        [
            f" After an all-gather rank {at} has all of them: {listed(values)}.",
            f" Only rank {at} forgets to call all_gather, and the others wait for ever.",
            f" Rank {at} says {values[at]} when it is asked.",
        ]
    )


def main() -> None:
    """Stories until there are enough characters, a few to a paragraph."""
    kinds = [reduced, reduced, averaged, sent, sent, shared, shared, placed, gathered]
    paragraphs, written = [], 0
    while written < CHARACTERS:
        paragraphs.append(" ".join(draw.choice(kinds)() for _ in range(draw.randint(2, 4))))
        written += len(paragraphs[-1]) + 2
    TEXT.write_text("\n\n".join(paragraphs) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
