# `make demo` and `make test` do all set-up themselves, on a machine that has only Python 3.11 and make.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
DOCKER_VENV ?= .venv-docker

.PHONY: demo test test-gpu test-page test-docker lint clean

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

# Builds both images and runs them, without a Docker engine: as root on Debian, see docs/docker.md.
test-docker: $(DOCKER_VENV)/.test
	$(DOCKER_VENV)/bin/python -m pytest --confcutdir=tests/docker tests/docker

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

$(DOCKER_VENV)/.test: tests/docker/requirements.txt
	$(PYTHON) -m venv $(DOCKER_VENV)
	$(DOCKER_VENV)/bin/pip install -r $<
	touch $@

clean:
	rm -rf $(VENV) $(DOCKER_VENV)
