"""Compose, check and launch GRPO jobs. Imports neither torch nor ray; the engine lives in ``rl``."""
