# The habits of this house; each recipe is one thin line. `make help` lists them.
PYTHON ?= python3
VENV   ?= .venv
PY     ?= $(VENV)/bin/python
# Each form has its own doctrees: what one form has seen to be unchanged, another may not have rendered yet.
SPHINX  = $(PY) -m sphinx -c . -d _build/doctrees/$@ -W --keep-going $(if $(EDITION),-D labs_edition=$(EDITION))
DECKS   = $(PY) -m sphinx -d _build/doctrees/$@ -W --keep-going
READY   = $(if $(findstring $(VENV),$(PY)),$(VENV)/ready)

.PHONY: help html pdf epub slides anki all live edition test check serve cluster clean torture matrix

help: ## list the habits
	@grep -hE '^[a-z]+:.*##' Makefile | sed 's/:.*## /\t/' | expand -t 10

$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("The handbook needs Python 3.11 or newer; this is %s. Try: make PYTHON=python3.11 …" % sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet -c constraints.txt -e ".[book,test]"
	@touch $@

html: $(READY) ## the book for a browser: _build/html/index.html (EDITION=name renders that edition)
	$(SPHINX) -b html handbook _build/html

pdf: $(READY) ## the book and each chapter in print: _build/pdf/
	$(SPHINX) -b bookpdf handbook _build/pdf

epub: $(READY) ## the book for a reader: _build/epub/ddp-handbook.epub
	$(SPHINX) -b epub handbook _build/epub

slides: html ## the decks: _build/slides/<deck>.html, <deck>.pdf, <deck>-notes.pdf
	$(DECKS) -b revealjs slides _build/slides

anki: $(READY) ## the flashcards: _build/anki/ddp-handbook.apkg
	$(SPHINX) -b anki handbook _build/anki

all: html pdf epub slides anki ## all forms of the book

live: $(READY) ## html with every script executed here, no edition used
	$(SPHINX) -D labs_live=1 -b html handbook _build/html

edition: $(READY) ## record this machine's edition: make edition NAME=h200 (FRESH=1 records all of it again)
	@test -n "$(NAME)" || { echo "make edition needs a name, such as: make edition NAME=h200"; exit 2; }
	$(PY) -m sphinx -c . -d _build/doctrees/$@ -b dummy -D labs_record=$(NAME) $(if $(FRESH),-D labs_fresh=1) handbook _build/edition
	DDPLAB_CLAIMS_RESULTS=gallery/editions/$(NAME)/claims.json $(PY) -m pytest tests/claims

test: $(READY) ## every test; REQUIRE_ALL=1 forbids skips for a missing browser, Pango, poppler or epubcheck
	$(PY) -m pytest -n logical --maxprocesses 4

check: $(READY) ## ruff, mypy, spelling, prose rules; internal links are checked by every build (-W)
	$(PY) -m ruff check . && $(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m codespell_lib
	$(PY) -m pytest tests/site/test_prose.py

serve: $(READY) ## the book on http://localhost:8000, rebuilt as you write
	$(PY) -m sphinx_autobuild -c . -d _build/doctrees/html --ignore 'handbook/labs/*' --watch gallery handbook _build/html

cluster: $(READY) ## four nodes and a Slurm on this host, until Ctrl-C (Linux; Slurm needs root)
	$(PY) tests/recipes

torture: $(READY) ## 1,000 launches in a row, 1,000 kills of runs that save (about ten minutes)
	LAUNCHES=1000 $(PY) -m pytest tests/kit/test_launch.py -k many_launches
	KILLS=1000 $(PY) -m pytest tests/kit/test_checkpoint.py -k killed --timeout=0

matrix: ## tests and labs on every torch that a reader gets, each in .matrix/ (GBs): ONLY=2.11 PART=gallery FAILED=1 JOBS=4
	$(PYTHON) tests/matrix.py $(ONLY) $(addprefix --part ,$(PART)) $(if $(FAILED),--failed) $(addprefix --jobs ,$(JOBS))

clean: ## remove what was generated
	rm -rf _build handbook/labs
