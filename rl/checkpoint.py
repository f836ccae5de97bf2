"""Checkpoints of weights and optimizer state: torch.distributed.checkpoint, so that the number of ranks may change."""

from pathlib import Path

import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import Optimizer


def save_checkpoint(policy: nn.Module, optimizer: Optimizer, folder: Path) -> None:
    """Write a checkpoint; every rank calls this with the same folder.

    Raises:
        OSError: no space, or the folder cannot be written.
    """
    weights, state = get_state_dict(policy, optimizer)
    dcp.save({"policy": weights, "optimizer": state}, checkpoint_id=folder)


def load_checkpoint(policy: nn.Module, optimizer: Optimizer, folder: Path) -> None:
    """Read a checkpoint into a policy of the same model and an optimizer of the same type."""
    weights, state = get_state_dict(policy, optimizer)
    dcp.load({"policy": weights, "optimizer": state}, checkpoint_id=folder)
    set_state_dict(policy, optimizer, model_state_dict=weights, optim_state_dict=state)
