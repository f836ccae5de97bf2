"""Padding share of the three batching strategies on a log-normal mix of rollout lengths.

    python benchmarks/padding.py [--rollouts 1024] [--mean 400] [--sigma 0.8] [--max-seq-length 2048]

One line for each strategy, number of data-parallel shards and ``micro_batch_size`` (the token budget is
``max_seq_length * micro_batch_size``): padding over computed tokens, micro-batches per shard, the share of the budget
that micro-batches leave unused, and the tokens of the busiest shard over those of the average one.
"""

import argparse
import math
import random
from collections.abc import Sequence

from rl.batching import Shards, dynamic_batches, packed_batches, padding_share, static_batches


def log_normal_lengths(count: int, *, mean: float, sigma: float, longest: int, seed: int) -> list[int]:
    """``count`` lengths drawn from the log-normal distribution of this mean, cut at ``longest``."""
    generator = random.Random(seed)
    mu = math.log(mean) - sigma**2 / 2
    return [min(max(round(generator.lognormvariate(mu, sigma)), 1), longest) for _ in range(count)]


def strategies(
    lengths: Sequence[int], *, num_shards: int, micro_batch_size: int, max_seq_length: int
) -> dict[str, Shards]:
    """The same rollouts, batched in each way within the same budget."""
    mb_tokens = max_seq_length * micro_batch_size
    return {
        "static": static_batches(lengths, num_shards=num_shards, micro_batch_size=micro_batch_size),
        "dynamic": dynamic_batches(
            lengths, num_shards=num_shards, max_tokens=mb_tokens, round_to=64, max_width=max(lengths)
        ),
        "sequence_packing": packed_batches(lengths, num_shards=num_shards, capacity=mb_tokens),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=1024)
    parser.add_argument("--mean", type=float, default=400)
    parser.add_argument("--sigma", type=float, default=0.8)
    parser.add_argument("--max-seq-length", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()
    longest: int = options.max_seq_length
    lengths = log_normal_lengths(
        options.rollouts, mean=options.mean, sigma=options.sigma, longest=longest, seed=options.seed
    )
    print(f"{len(lengths)} rollouts, {sum(lengths)} tokens, longest {max(lengths)}")
    print("strategy          shards  micro_batch_size  padding  micro-batches  budget unused  busiest/mean")
    for num_shards in (1, 8):
        for micro_batch_size in (1, 4):
            batched = strategies(
                lengths, num_shards=num_shards, micro_batch_size=micro_batch_size, max_seq_length=longest
            )
            for name, shards in batched.items():
                tokens = [sum(batch.num_rows * batch.width for batch in shard) for shard in shards]
                budget = longest * micro_batch_size * len(shards[0]) * num_shards
                print(
                    f"{name:16}{num_shards:8}{micro_batch_size:18}{padding_share(shards, lengths):9.1%}"
                    f"{len(shards[0]):15}{1 - sum(tokens) / budget:15.1%}{max(tokens) * num_shards / sum(tokens):14.3f}"
                )


if __name__ == "__main__":
    main()
