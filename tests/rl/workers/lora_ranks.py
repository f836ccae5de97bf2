"""Run by test_lora_ranks.py in one process per rank: a training step of an adapter with a KL penalty.

python lora_ranks.py RANK NUM_RANKS FOLDER, where FOLDER holds settings.pkl and batches-NUM_RANKS.pkl and gets
weights-NUM_RANKS.pt (two steps later) and export-NUM_RANKS/.
"""

import pickle
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from rl.workers.dtensor import full_weights
from rl.workers.rank import PolicyRank


def main(rank: int, num_ranks: int, folder: Path) -> None:
    settings = pickle.loads((folder / "settings.pkl").read_bytes())
    policy_rank = PolicyRank(
        settings, rank=rank, num_ranks=num_ranks, rendezvous=f"file://{folder}/rendezvous-{num_ranks}", num_threads=1,
        log_file=None,
    )  # fmt: skip
    batches = pickle.loads((folder / f"batches-{num_ranks}.pkl").read_bytes())
    results = [policy_rank.train(batches[rank], 0.01) for _ in range(2)]
    weights = full_weights(policy_rank._policy)
    policy_rank.export(folder / f"export-{num_ranks}")
    if rank == 0:
        norms = [result.grad_norm for result in results]
        torch.save({"weights": weights, "grad_norms": norms}, folder / f"result-{num_ranks}.pt")
    if num_ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
