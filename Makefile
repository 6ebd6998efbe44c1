# make train: a virtual environment, then the first example on real data
# make test:  the same environment with what the tests need, then the tests
# make lint:  style and types
# make sanitize: what the tests compile, under AddressSanitizer and UBSan
# make frozen: forty nets: kernels, layouts, commands and values are unchanged
# make fuzz:  random programs under random commands; CASES=100000 SEED=1 WORKERS=2; continues after an interruption;
#             NETS=1: random nets, with recipes and without; DERIVATIVES=1: gradients of random bodies, against differences

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
PYTEST_ARGS ?=

PIP = $(VENV)/bin/python -m pip install --no-input --no-compile --quiet

CASES ?= 10000
SEED ?= 1
NETS ?=

.PHONY: train test lint sanitize fuzz frozen clean

train: $(VENV)/.examples
	$(VENV)/bin/python examples/01_digits_cnn.py

# Passive waiting: each worker has its own OpenMP threads, which would otherwise spin on the cores of the others.
test: $(VENV)/.test
	OMP_WAIT_POLICY=passive $(VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

lint: $(VENV)/.test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# Vector loops of every form, and the results of random commands: masked tails, padding, halos, gathers. What the tests
# claim of compiled kernels must hold, and nothing may be read or written outside of an array.
sanitize: $(VENV)/.test
	OMP_WAIT_POLICY=passive $(VENV)/bin/python -m tests.sanitize -n $(WORKERS) -k "avx512 or plain_random_cases" \
	    tests/codegen/test_vector_code.py tests/codegen/test_random_programs.py tests/fuzz/test_random_programs.py

# Finished batches are kept until the sources change.
fuzz: $(VENV)/.test
	$(VENV)/bin/python tests/fuzz/run.py --cases $(CASES) --seed $(SEED) --workers $(WORKERS) --state .fuzz \
	    $(if $(NETS),--nets) $(if $(DERIVATIVES),--derivatives)

# Kernels, layouts, commands and values of forty nets, compared with those of an earlier revision (tests/frozen/records).
frozen: $(VENV)/.test
	OMP_WAIT_POLICY=passive $(VENV)/bin/python -m tests.frozen

# Made again when the dependencies change. A half-made environment is removed, so that the next try starts again. The
# package is found by its path ("compat"): a hook is asked after folders, and a clone called latte beside a script is one.
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	    echo "Python could not make a virtual environment (Debian: apt install python3-venv)" >&2; exit 1; }

$(VENV)/.examples $(VENV)/.test: $(VENV)/.%: setup.py pyproject.toml | $(VENV)/bin/python
	$(PIP) --config-settings editable_mode=compat --editable '.[$*]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .fuzz
