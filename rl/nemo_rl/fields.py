"""Settings of a job that have no counterpart in NeMo RL, and why: one that is not at its default is refused there."""

from collections.abc import Mapping

WITHOUT_COUNTERPART: Mapping[str, str] = {
    "training.top_k": "NeMo RL refuses top-k sampling with NeMo Gym",
    "training.max_rollout_turns": "NeMo RL does not pass a limit of turns to NeMo Gym's agents",
    "training.parallelism.pipeline_parallel_size": "NeMo RL's DTensor workers have no pipeline parallelism",
    "model.trust_remote_code": "NeMo RL runs the Python files that ship with a model whether this is set or not",
    "engine.max_failed_share": "NeMo RL does not count failed rollouts",
    "gym.version": "NeMo RL runs the NeMo Gym of its own checkout",
    "gym.start_timeout_s": "NeMo RL starts NeMo Gym by itself, without a bound",
    "gym.rollout_timeout_s": "NeMo RL collects rollouts without a bound",
    "gym.max_in_flight": "NeMo RL sends all rollouts of a step at once",
}
