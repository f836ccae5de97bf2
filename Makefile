# Each target does its own set-up: a fresh clone needs nothing but `make` and a Python 3.13 (or a uv that can fetch one).
.DEFAULT_GOAL := help
# Importing vLLM takes half as long once its bytecode is cached.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help demo test check golden locks

help:  ## what there is
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo:  ## train a 135M-parameter model against a NeMo Gym environment on this machine's CPU
	@locks/install.sh cpu
	.venv/bin/grpo train recipe=demo

test:  ## all tests that need no GPU, real vLLM and NeMo Gym included
	@locks/install.sh dev
	.venv/bin/pytest --durations=50 --durations-min=3

check:  ## lint, format and types
	@locks/install.sh dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

golden:  ## rewrite tests/golden from the recipes
	@locks/install.sh dev
	.venv/bin/pytest tests/launcher/config tests/rl/nemo_rl tests/rl/test_metric_page.py --golden

locks:  ## resolve locks/ anew from pyproject.toml
	@locks/install.sh dev
	locks/compile.sh
