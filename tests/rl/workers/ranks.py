"""Run by test_ranks.py: training steps divided over processes in several ways. The processes are forks of this one,
so that the seconds of imports are spent once.

python ranks.py FOLDER, where FOLDER holds cases-NUM_RANKS.pkl and gets results-NUM_RANKS-RANK.pt:
case -> tensor parallel size -> what ``one_step`` gives; 0 stands for a single rank, which computes all.
"""

import multiprocessing
import pickle
import sys
import time
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


def rank_main(rank: int, num_ranks: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous-{num_ranks}", rank=rank,
                            world_size=num_ranks)  # fmt: skip
    sizes = (1, 2) if num_ranks == 2 else (2,)
    meshes = {size: rank_mesh("cpu", num_ranks, tensor_parallel_size=size) for size in sizes}
    results: dict[str, dict[int, Any]] = {}
    for name, case in pickle.loads((folder / f"cases-{num_ranks}.pkl").read_bytes()).items():
        results[name] = {
            size: one_step(case, mesh, case["batches"][num_ranks // size][rank // size])
            for size, mesh in meshes.items()
        }
        if rank == 0 and num_ranks == 2:
            results[name][0] = one_step(case, None, case["batches"][1][0])
    torch.save(results, folder / f"results-{num_ranks}-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    fork = multiprocessing.get_context("fork")
    for num_ranks in (2, 4):
        ranks = [fork.Process(target=rank_main, args=(rank, num_ranks, folder)) for rank in range(num_ranks)]
        for process in ranks:
            process.start()
        # A rank that fails leaves the others waiting for it.
        while any(process.exitcode is None for process in ranks) and not any(process.exitcode for process in ranks):
            time.sleep(0.05)
        failed = any(process.exitcode for process in ranks)
        for process in ranks:
            process.kill()
            process.join()
        if failed:
            sys.exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
