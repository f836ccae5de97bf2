"""Run by test_lora_ranks.py in one process per rank: a training step of an adapter with a KL penalty.

python lora_ranks.py RANK NUM_RANKS FOLDER, where FOLDER holds settings.pkl and batches-DATA_PARALLEL_SIZE.pkl. For each
tensor parallel size that divides the ranks it gets result-DATA-TENSOR.pt (two steps later) and export-DATA-TENSOR/.
"""

import pickle
import sys
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from rl.workers.dtensor import full_weights
from rl.workers.rank import PolicyRank


def main(rank: int, num_ranks: int, folder: Path) -> None:
    settings = pickle.loads((folder / "settings.pkl").read_bytes())
    for size in range(1, num_ranks + 1):
        name = f"{num_ranks // size}-{size}"
        policy_rank = PolicyRank(
            replace(settings, tensor_parallel_size=size), rank=rank, num_ranks=num_ranks,
            rendezvous=f"file://{folder}/rendezvous-{name}", num_threads=1, log_file=None,
        )  # fmt: skip
        batch = pickle.loads((folder / f"batches-{num_ranks // size}.pkl").read_bytes())[rank // size]
        results = [policy_rank.train(batch, 0.01) for _ in range(2)]
        weights = full_weights(policy_rank._policy)
        policy_rank.export(folder / f"export-{name}")
        if rank == 0:
            norms = [result.grad_norm for result in results]
            torch.save({"weights": weights, "grad_norms": norms}, folder / f"result-{name}.pt")
        if num_ranks > 1:
            dist.barrier()
            dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
