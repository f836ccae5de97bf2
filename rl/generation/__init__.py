"""Sampling: vLLM in a Ray actor behind a gateway, and a scripted replay for tests."""
