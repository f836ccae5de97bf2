"""NeMo Gym on the other side of HTTP: its environment, its servers, and the rollouts they return."""
