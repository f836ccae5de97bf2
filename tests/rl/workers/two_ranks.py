"""Run by test_ranks.py in one process per rank: one training step on a saved model, gradients written by rank 0.

python two_ranks.py RANK NUM_RANKS FOLDER, where FOLDER holds model/, batch.pkl and gets gradients.pt
"""

import pickle
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from rl.workers.dtensor import full_weights, load_policy
from rl.workers.settings import ModelSettings
from rl.workers.step import train_step


class GradientKeeper(torch.optim.SGD):
    """Keeps the whole gradients that a step would use, then steps."""

    def __init__(self, policy: torch.nn.Module):
        super().__init__(policy.parameters(), lr=0.0)
        self.policy = policy
        self.gradients: dict[str, torch.Tensor] = {}

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for name, parameter in self.policy.named_parameters():
            gradient = parameter.grad
            if gradient is not None:
                self.gradients[name] = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient.clone()
        super().step()


def main(rank: int, num_ranks: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous-{num_ranks}", rank=rank,
                            world_size=num_ranks)  # fmt: skip
    mesh = init_device_mesh("cpu", (num_ranks,)) if num_ranks > 1 else None
    settings = ModelSettings(
        folder=folder / "model", trust_remote_code=False, activation_checkpointing=False, config_overrides={}
    )
    policy = load_policy(settings, mesh, torch.device("cpu"))
    batches, step_settings = pickle.loads((folder / f"batches-{num_ranks}.pkl").read_bytes())
    optimizer = GradientKeeper(policy)
    result = train_step(policy, optimizer, batches[rank], step_settings, learning_rate=0.1, reference=None)
    weights = full_weights(policy)
    if rank == 0:
        torch.save(
            {"gradients": optimizer.gradients, "weights": weights, "grad_norm": result.grad_norm},
            folder / f"result-{num_ranks}.pt",
        )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
