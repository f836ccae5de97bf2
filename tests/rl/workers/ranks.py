"""Run by test_ranks.py in one process per rank: training steps divided over the ranks in several ways.

python ranks.py RANK NUM_RANKS FOLDER, where FOLDER holds cases.pkl and gets results-RANK.pt:
case -> tensor parallel size -> what ``one_step`` gives; 0 stands for a single rank, which computes all.
"""

import pickle
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from rl.optimizer import build_optimizer
from rl.workers.batch import RankBatch
from rl.workers.dtensor import full_weights, load_policy
from rl.workers.step import score, train_step
from rl.workers.tensor_parallel import rank_mesh

CPU = torch.device("cpu")


def one_step(case: dict[str, Any], mesh: DeviceMesh | None, batch: RankBatch) -> dict[str, Any]:
    """The gradients that a step uses, what it reports, and the weights and scores that it leaves behind."""
    policy = load_policy(case["model"], mesh, CPU)
    reference = None
    if case["step"].loss.ref_policy_kl_penalty > 0:
        reference = load_policy(case["model"], mesh, CPU).requires_grad_(False)
    optimizer = build_optimizer(policy.parameters(), case["optimizer"])
    gradients: dict[str, torch.Tensor] = {}

    def keep(*_: object) -> None:
        for name, parameter in policy.named_parameters():
            if (gradient := parameter.grad) is not None:
                gradients[name] = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient.clone()

    optimizer.register_step_pre_hook(keep)
    result = train_step(policy, optimizer, batch, case["step"], learning_rate=0.1, reference=reference)
    return {
        "gradients": gradients, "result": result, "weights": full_weights(policy),
        "scores": score(policy, batch, case["step"]),
    }  # fmt: skip


def main(rank: int, num_ranks: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous-{num_ranks}", rank=rank,
                            world_size=num_ranks)  # fmt: skip
    sizes = (1, 2) if num_ranks == 2 else (2,)
    meshes = {size: rank_mesh("cpu", num_ranks, tensor_parallel_size=size) for size in sizes}
    results: dict[str, dict[int, Any]] = {}
    for name, case in pickle.loads((folder / "cases.pkl").read_bytes()).items():
        results[name] = {
            size: one_step(case, mesh, case["batches"][num_ranks // size][rank // size])
            for size, mesh in meshes.items()
        }
        if rank == 0:
            results[name][0] = one_step(case, None, case["batches"][1][0])
    torch.save(results, folder / f"results-{num_ranks}-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
