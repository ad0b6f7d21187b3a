# Two commands set everything up: `make demo` and `make test`. The rest is for those who change the code.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# One install per purpose, done again when what it depends on changes.
install = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

.DEFAULT_GOAL := help
.PHONY: help demo test axe portable installs reproduce lint bench docs package sbom clean

help:
	@echo "make demo   set up, then watch attention select tokens with a certified margin (writes out/demo)"
	@echo "make test   set up, then run all tests"
	@echo "make axe    axe-core, for the tests of the pages in a browser (make test tries by itself)"
	@echo "make portable  the numeric tests under the arithmetic of other processors"
	@echo "make installs  the lowest versions, each extra alone, other Pythons, a read-only installation (needs uv)"
	@echo "make reproduce  set up, then every figure and number of both papers, with a report (writes runs)"
	@echo "make lint   formatter, linter, type checker and import contracts"
	@echo "make bench  the comparisons quoted in the documentation"
	@echo "make docs   the documentation as a site (writes build/site)"
	@echo "make package  wheel and sdist (writes dist), installed into an empty environment, its demonstration run there"
	@echo "make sbom   what is installed, with versions and licences (writes build/sbom.json)"
	@echo "make clean  remove the environment and everything generated"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tokenmargin needs Python 3.11 or newer; run make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-%: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing tokenmargin [$*] into $(VENV) ..."
	@$(install) '.[$*]'
	@touch $@

demo: $(VENV)/.installed-report,classify
	@$(BIN)/tokenmargin demo --out out/demo

test: $(VENV)/.installed-test axe
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal $(ARGS)

# axe-core, which the tests in the browser run where it is there; no reason to fail where it cannot be had.
axe: $(VENV)/.installed-test
	@$(BIN)/python -c "import axe_playwright_python" 2> /dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps axe-playwright-python==0.1.8 2> /dev/null || echo "axe-core cannot be had here: its tests are left out"

portable: $(VENV)/.installed-test
	@VENV=$(VENV) .ci/portable

installs:
	@.ci/installs $(PARTS)

reproduce: $(VENV)/.installed-report $(VENV)/.installed-train
	@$(BIN)/tokenmargin reproduce

lint: $(VENV)/.installed-test $(VENV)/.installed-lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "The site: build/site/index.html"

# The sdist is built first and the wheel from it, so that both are whole; the demonstration runs far from the sources.
# With LENT=1 the empty environment takes its dependencies from $(VENV) instead of installing them: seconds, not minutes.
package: $(VENV)/.installed-package
	@rm -rf dist build/empty && $(BIN)/python -m build --no-isolation --outdir dist > /dev/null
	@$(PYTHON) -m venv build/empty
	@$(if $(LENT),$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > build/empty/lent && cp build/empty/lent $$(build/empty/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/lent.pth)
	@build/empty/bin/python -m pip install --quiet --disable-pip-version-check --no-compile $(if $(LENT),--no-deps,--constraint constraints.txt) "$$(ls dist/*.whl)[report,classify]"
	@cd build/empty && PYTHONPATH= bin/tokenmargin demo --out demo && test -s demo/explore.html && test -s demo/report.html
	@rm -rf build/empty && ls dist

sbom: $(VENV)/.installed-test
	@$(BIN)/python -m benchmarks.dependencies --extra all --out build/sbom.json

clean:
	rm -rf $(VENV) out runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
