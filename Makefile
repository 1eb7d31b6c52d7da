# Needs Python 3.11 or newer, make and git; everything else goes into .venv.
PYTHON ?= python3
BIN = .venv/bin

.PHONY: env tune test test-all check

env: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode \
		-c constraints.txt -e '.[dev]'
	touch $@

# The default search: real digits, both frameworks, 1 and 2 workers.
tune: env
	$(BIN)/python -m raybench.tune $(ARGS)

# All checks and tests; real Ray sessions among them.
test: check
	$(BIN)/python -m pytest $(ARGS)

# The long loops of faults too: every signal at every moment, many kills.
test-all: check
	$(BIN)/python -m pytest -m "all or not all" $(ARGS)

check: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
