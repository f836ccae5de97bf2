"""The training engine: collect rollouts, compute advantages, train, sync weights."""
