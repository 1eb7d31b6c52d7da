# Requires Python 3.11 or newer, make and git; everything else is installed into .venv.
PYTHON ?= python3
BIN = .venv/bin
# Number of processes for the tests without Ray.
JOBS ?= 2
PYTEST = $(BIN)/python -m pytest
PURE = $(PYTEST) -n $(JOBS) --dist worksteal
# Folders of all tests with Ray; collecting the other folders would take as long as some tests.
WITH_RAY = tests/cluster tests/deploy tests/e2e tests/gpu
RAY_TESTS = $(or $(filter tests/%,$(ARGS)),$(WITH_RAY))

.PHONY: env pins rays tune test test-all gpu gpu-torch gpu-tensorflow check

env: .venv/ready

# pip installs the pinned uv; uv, which is several times as fast, installs the rest.
.venv/ready: pyproject.toml requirements.txt
	$(PYTHON) -m venv .venv
	sed -n '/^uv==/,/[^\\]$$/p' requirements.txt > .venv/uv.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -r .venv/uv.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode -r requirements.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e .
	touch $@

# Rewrite requirements.txt from pyproject.toml. Versions stay if they fit; ARGS=--upgrade takes new
# ones.
pins:
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-annotate --no-emit-index-url \
		--custom-compile-command "make pins" --extra dev pyproject.toml -o requirements.txt $(ARGS)

# Test the private parts of Ray that raybench uses, and one search, with the oldest and the newest
# Ray that pyproject.toml allows.
rays: env
	.ci/rays $(ARGS)

# Run the default search: handwritten digits, both frameworks, 1 and 2 workers.
tune: env
	$(BIN)/python -m raybench.tune $(ARGS)

# Run all checks and tests. Tests without Ray and tests with real Ray sessions run in parallel.
test: check
	.ci/both '$(PURE) -m "not ray and not all" $(ARGS)' '$(PYTEST) -m "ray and not all" $(RAY_TESTS) $(ARGS)'

# Also run tests that take long or cover rare cases: every signal at every moment, many kills. Tests
# with Ray mostly wait, so those marked `apart` run in parallel with the other tests with Ray, after
# the tests without Ray.
test-all: check
	.ci/both '$(PURE) -m "not ray" $(ARGS) || bad=1; \
		$(PYTEST) -m "ray and apart" $(RAY_TESTS) $(ARGS) || bad=1; [ -z "$$bad" ]' \
		'$(PYTEST) -m "ray and not apart" $(RAY_TESTS) $(ARGS)'

# Run the tests that need a GPU, in ten minutes. Each framework has its own environment, because
# TensorFlow's CUDA 12 and torch's CUDA 13 install the same files of cuDNN and NCCL.
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
