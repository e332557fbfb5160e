# `make demo` and `make test` do all set-up themselves, on a machine that has only Python 3.11 and make.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-gpu test-page lint clean

demo: $(VENV)/.demo
	$(BIN)/descant demo

test: $(VENV)/.test lint
	$(BIN)/python -m pytest

# On a machine with a CUDA device; fails without one.
test-gpu: $(VENV)/.test
	$(BIN)/python -m pytest tests/gpu

# The page in a real browser, on the demo's model; needs Chromium (apt-get install chromium).
test-page: $(VENV)/.test
	$(BIN)/python -m pytest tests/page

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# One install, about 7 minutes and 11 GB; again only when pyproject.toml changes.
$(VENV)/.demo: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -e '.[demo]'
	touch $@

$(VENV)/.test: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -e '.[bench,demo,examples,mcp,test]'
	touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV)
