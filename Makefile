# `make sweep` and `make test` work from nothing: Python 3.11 or newer with venv is all they need.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PINNED := pyproject.toml constraints.txt

.PHONY: sweep test check lock clean

sweep: $(VENV)/.installed
	$(BIN)/python -m amp_sweep.train -m parallel=none,dp,ddp precision=fp32,autocast,scaler

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n 2 --no-loadscope-reorder $(ARGS)

check: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/.installed: $(PINNED)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

# Pins what is installed now; run it after a deliberate upgrade.
lock: $(VENV)/.installed-test
	echo "# Versions that the tests passed with; pip reads this with -c. Made by: make lock" > constraints.new
	$(BIN)/python -m pip freeze --exclude-editable --exclude amp-sweep >> constraints.new
	mv constraints.new constraints.txt

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache
