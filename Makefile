# Needs Python 3.11 or newer, make and git; everything else goes into .venv.
PYTHON ?= python3
BIN = .venv/bin
# Processes that the tests without Ray run in.
JOBS ?= 2
PYTEST = $(BIN)/python -m pytest
PURE = $(PYTEST) -n $(JOBS) --dist worksteal
# The folders of all tests with Ray: to collect the others takes as long as some tests.
WITH_RAY = tests/cluster tests/deploy tests/e2e tests/gpu
RAY_TESTS = $(or $(filter tests/%,$(ARGS)),$(WITH_RAY))

.PHONY: env pins rays tune test test-all gpu gpu-torch gpu-tensorflow check

env: .venv/ready

# pip fetches the pinned uv, which is several times as fast as pip, and uv the rest.
.venv/ready: pyproject.toml requirements.txt
	$(PYTHON) -m venv .venv
	sed -n '/^uv==/,/[^\\]$$/p' requirements.txt > .venv/uv.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -r .venv/uv.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode -r requirements.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e .
	touch $@

# Makes requirements.txt again: versions stay where they fit, ARGS=--upgrade takes new ones.
pins:
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-annotate --no-emit-index-url \
		--custom-compile-command "make pins" --extra dev pyproject.toml -o requirements.txt $(ARGS)

# The oldest and the newest Ray that pyproject.toml allows: canaries, one search each.
rays: env
	.ci/rays $(ARGS)

# The default search: real digits, both frameworks, 1 and 2 workers.
tune: env
	$(BIN)/python -m raybench.tune $(ARGS)

# All checks and tests: those without Ray, and beside them those with real Ray sessions.
test: check
	.ci/both '$(PURE) -m "not ray and not all" $(ARGS)' '$(PYTEST) -m "ray and not all" $(RAY_TESTS) $(ARGS)'

# Long and rare cases too: every signal at every moment, many kills. Tests with Ray wait much, so
# some of them run beside the others once those without Ray are done.
test-all: check
	.ci/both '$(PURE) -m "not ray" $(ARGS) || bad=1; \
		$(PYTEST) -m "ray and apart" $(RAY_TESTS) $(ARGS) || bad=1; [ -z "$$bad" ]' \
		'$(PYTEST) -m "ray and not apart" $(RAY_TESTS) $(ARGS)'

# What only a GPU can show, in ten minutes. An environment a framework: the cuDNN and NCCL of
# TensorFlow's CUDA 12 and of torch's CUDA 13 are the same files.
gpu: gpu-torch gpu-tensorflow

gpu-torch gpu-tensorflow: gpu-%: env
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python .venv-gpu-$*
	$(BIN)/uv pip install --quiet --python .venv-gpu-$*/bin/python -e '.[$(GPU_EXTRA_$*)]' \
		-c requirements.txt pytest pytest-timeout
	.venv-gpu-$*/bin/python -m pytest -m gpu -s tests/gpu $(ARGS)
GPU_EXTRA_torch = torch
GPU_EXTRA_tensorflow = tensorflow-gpu

check: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
