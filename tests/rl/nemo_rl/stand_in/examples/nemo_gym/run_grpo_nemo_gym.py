"""Stands in for NeMo RL's script: same arguments, files and ways to end, nothing trained.

STAND_IN=success | crash | idle | hang decides how it goes; a config without the keys it requires is always refused.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    model_config = ConfigDict(extra="allow")


class GenerationConfig(Section):
    max_new_tokens: int
    val_temperature: float
    val_top_k: int | None


class PolicyConfig(Section):
    model_name: str
    generation: GenerationConfig


class GRPOConfig(Section):
    max_num_steps: int
    seq_logprob_error_threshold: float | None
    max_val_samples: None


class MasterConfig(Section):
    grpo: GRPOConfig
    policy: PolicyConfig


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    config: Any = OmegaConf.to_container(OmegaConf.load(parser.parse_args().config), resolve=True)
    print("Loaded configuration", flush=True)
    MasterConfig.model_validate(config)
    match os.environ["STAND_IN"]:
        case "success":
            train(config)
        case "crash":
            print("\x1b[36m(MegatronWorker pid=77)\x1b[0m torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB")
            raise RuntimeError("ActorDiedError: the worker's process has died")
        case "hang":
            print("waiting for rollouts", flush=True)
            time.sleep(600)
        case "idle":
            print("dataset too small")


def train(config: dict[str, Any]) -> None:
    """Two steps with validation after the second, written as the logger and the checkpointer write them."""
    import ray
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    ray.init(address="auto", log_to_driver=False)
    events = EventFileWriter(str(Path(config["logger"]["log_dir"]) / "exp_001" / "tensorboard"))
    metrics = {
        "timing/setup/total_setup_time_s": (1, 9.0),
        "train/reward": (1, 0.25),
        "timing/train/total_step_time": (1, 3.0),
        "ray/node.0.gpu.0.util": (40, 99.0),
    }
    second = {"train/reward": (2, 0.5), "validation/accuracy": (2, 0.75), "train/baseline_reward/pct_mixed": (2, 50.0)}
    for step in (metrics, second):
        for tag, (number, value) in step.items():
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            events.add_event(Event(wall_time=time.time(), step=number, summary=summary))
        events.flush()
        print("step done", flush=True)
        time.sleep(1)
    events.close()
    print(json.dumps({name: os.environ.get(name) for name in ("NEMO_GYM_EXTRA_ROOTS", "UV_FIND_LINKS", "RAY_ADDRESS")}))
    save(Path(config["checkpointing"]["checkpoint_dir"]) / "step_2")


def save(folder: Path) -> None:
    weights = folder / "policy" / "weights" / "model" / "consolidated"
    tokenizer = folder / "policy" / "tokenizer"
    for needed in (weights, tokenizer):
        needed.mkdir(parents=True)
    (weights / "config.json").write_text("{}")
    (weights / "model.safetensors").write_bytes(b"weights")
    (tokenizer / "tokenizer.json").write_text("{}")
    (folder / "training_info.json").write_text(json.dumps({"val:total_reward/mean": 0.75}))


if __name__ == "__main__":
    sys.exit(main())
