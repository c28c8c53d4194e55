# The habits of this house; each recipe is one thin line. `make help` lists them.
PYTHON ?= python3
# TORCH=python3 takes the torch of that Python as it is, and adds only what is missing, in an environment of its own.
TORCH  ?=
VENV   ?= $(if $(TORCH),.venv-torch,.venv)
PY     ?= $(VENV)/bin/python
SPHINX = $(PY) -m sphinx -c . -j auto -d _build/doctrees/book -W --keep-going $(if $(EDITION),-D labs_edition=$(EDITION)) $(if $(SITE),-D ogp_site_url=$(SITE))
DECKS  = $(PY) -m sphinx -d _build/doctrees/slides -W --keep-going $(if $(EDITION),-D labs_edition=$(EDITION))
# What takes longest, the handbook in print, comes first where several forms are made at once.
LATER  = nice
# In a folder of its own, with documents of its own: what `make html` has built stays as it is.
LIVE   = $(subst doctrees/book,doctrees/live,$(SPHINX)) -D labs_edition=here
# Without EDITION= the web book holds all editions: the default one, and the others below it, each in editions/<name>.
FRONT  = $(shell sed -n 's/^labs_default_edition = "\(.*\)"/\1/p' conf.py)
BESIDE = $(if $(EDITION),,$(filter-out $(FRONT),$(patsubst gallery/editions/%/manifest.json,%,$(wildcard gallery/editions/*/manifest.json))))
SWITCH = $(if $(BESIDE),-D labs_editions=all)
# Tests wait more than they compute: two for each core.
PARALLEL = --dist loadfile -n $$(( $$($(PY) -c 'import os; print(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())') * 2 ))
# What is installed: "book" reads it (no torch), "labs" runs it, "test" has everything.
ready  = $(if $(filter $(VENV)/%,$(PY)),$(VENV)/$(1))
# What was built is put beside the web pages, and listed on the first of them.
listed = @$(PY) handbook/_ext/navigation/downloads.py _build
# Another Python, such as PY=python3 of a container with its own torch, needs no installed kit.
kit    = $(if $(ready),,PYTHONPATH="$(CURDIR)/gallery$${PYTHONPATH:+:$$PYTHONPATH}") $(PY) -m ddplab
record = $(kit).recording

.PHONY: help html pdf epub slides anki all live edition edition-archive edition-unpack test test-all check addresses serve cluster clean torture mutations shake fuzz matrix bench

help: ## list the habits
	@grep -hE '^[a-z-]+:.*##' Makefile | sed 's/:.*## /\t/' | expand -t 17

$(VENV)/pip: pyproject.toml constraints.txt
	@$(or $(TORCH),$(PYTHON)) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("The handbook needs Python 3.11 or newer; this is %s. Try: make PYTHON=python3.11 …" % sys.version.split()[0])'
	$(if $(TORCH),$(TORCH) tests/own_torch.py $(VENV),$(PYTHON) -m venv $(VENV))
	@touch $@

$(VENV)/book $(VENV)/labs $(VENV)/test: $(VENV)/%: $(VENV)/pip
	@echo "installing the packages of [$*] into $(VENV)$(if $(filter book,$*),, (torch is among them: minutes, and gigabytes with CUDA))"
	$(VENV)/bin/pip install --disable-pip-version-check $(if $(WHEELS),--no-index --find-links "$(WHEELS)") -c $(if $(TORCH),$(VENV)/)constraints.txt -e ".[$*]"
	@touch $@ $(if $(filter test,$*),$(VENV)/book $(VENV)/labs)

html: $(call ready,book) ## the book for a browser: _build/html/index.html (EDITION=name renders that edition, SITE=https://… names its host)
	$(SPHINX) $(SWITCH) -b html handbook _build/html
	@$(foreach name,$(BESIDE),$(SPHINX) $(SWITCH) -D labs_edition=$(name) -d _build/doctrees/$(name) -b html handbook _build/html/editions/$(name) &&) true

pdf: html ## the book and each chapter in print: _build/pdf/ (PAPER=letter instead of A4)
	$(SPHINX) $(if $(PAPER),-D bookpdf_paper=$(PAPER)) -b bookpdf handbook _build/pdf
	$(listed)

epub: html ## the book for a reader: _build/epub/ddp-handbook.epub
	$(LATER) $(SPHINX) -b epub handbook _build/epub
	$(listed)

slides: html ## the decks: _build/slides/<deck>.html, <deck>.pdf, <deck>-notes.pdf
	$(LATER) $(DECKS) -b revealjs slides _build/slides
	$(listed)

anki: html ## the flashcards: _build/anki/ddp-handbook.apkg
	$(LATER) $(SPHINX) -b anki handbook _build/anki
	$(listed)

all: html pdf epub slides anki ## all forms of the book

live: $(call ready,book) $(call ready,labs) ## _build/live/: html with every lab executed here; LABS='one two' executes these only
	$(record) here --into _build/editions --no-claims --fresh $(if $(LABS),--labs $(LABS))
	$(LIVE) -b html handbook _build/live

edition: $(call ready,labs) ## record this machine's edition: make edition NAME=h200 (LABS='…' CLAIMS='…' a part, LABS=timed what measures time, BUDGET=540 stops in time, LIMIT=60 a lab's, PLAN=1 estimates, FRESH=1 records again)
	@test -n "$(NAME)" || { echo "make edition needs a name, such as: make edition NAME=h200"; exit 2; }
	$(record) $(NAME) $(if $(LABS),--labs $(LABS)) $(if $(CLAIMS),--claims $(CLAIMS)) $(if $(BUDGET),--budget $(BUDGET)) \
	  $(if $(LIMIT),--limit $(LIMIT)) $(if $(FRESH),--fresh) $(if $(PLAN),--plan)

edition-archive: $(call ready,labs) ## an edition in one file, to carry it back: make edition-archive NAME=h200
	@test -n "$(NAME)" || { echo "make edition-archive needs a name, such as: make edition-archive NAME=h200"; exit 2; }
	$(kit) edition archive $(NAME)

edition-unpack: $(call ready,book) ## check such a file, and put its edition beside the others: make edition-unpack FILE=h200.zip
	@test -n "$(FILE)" || { echo "make edition-unpack needs a file, such as: make edition-unpack FILE=h200.zip"; exit 2; }
	$(kit) edition unpack $(FILE) $(if $(REPLACE),--replace)

test: $(call ready,test) $(if $(BUILT),,html) ## what changed since its recorded pass, a core that touches every room, and 3 % of the rest
	$(PY) -m pytest $(PARALLEL) --ledger=changed -rs --durations=20

test-all: $(call ready,test) $(if $(BUILT),,all) ## every test, and the ledger of passes anew; BUILT=1, after make all; REQUIRE_ALL=1 forbids skips for a missing tool
	EVERY_TEXT=1 $(PY) -m pytest $(PARALLEL) --ledger=anew -rs --durations=20

check: $(call ready,test) ## ruff, mypy, spelling, prose rules; internal links are checked by every build (-W)
	$(PY) -m ruff check . && $(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m codespell_lib
	$(PY) -m pytest tests/site/test_prose.py

addresses: html ## handbook/addresses.txt with the addresses that are new: from then on each leads to its answer
	cp _build/html/addresses.txt handbook

serve: $(call ready,book) ## the book on http://localhost:8000, rebuilt as you write
	$(PY) -m sphinx_autobuild -c . -d _build/doctrees/book --ignore 'handbook/labs/*' --watch gallery handbook _build/html

cluster: $(call ready,test) ## four nodes and a Slurm on this host, until Ctrl-C (Linux; Slurm needs root)
	$(PY) tests/recipes

bench: $(call ready,book) ## how long each form of the book takes to build here
	$(PY) tests/bench.py

torture: $(call ready,test) ## 1,000 launches in a row, 1,000 kills of runs that save (about ten minutes)
	LAUNCHES=1000 $(PY) -m pytest tests/kit/test_launch.py -k many_launches
	KILLS=1000 $(PY) -m pytest tests/kit/test_checkpoint.py -k killed --timeout=0

mutations: $(call ready,test) ## break what claims say, and see their tests fail (CLAIMS='id …')
	$(PY) tests/mutations.py $(CLAIMS)

shake: $(call ready,test) ## claims and kit while their ranks are stopped and continued at random (TESTS=… SECONDS=0.5 SEED=…)
	$(PY) tests/shake.py $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(or $(TESTS),tests/claims tests/kit)

fuzz: $(call ready,test) ## ten minutes of random logs for ddplab diagnose: it must answer, in linear time (SECONDS=600 SEED=…)
	$(PY) tests/fuzz.py $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED))

matrix: ## tests and labs on every torch that a reader gets, each in .matrix/ (GBs): ONLY=2.11 PART=gallery FAILED=1 JOBS=4
	$(PYTHON) tests/matrix.py $(ONLY) $(addprefix --part ,$(PART)) $(if $(FAILED),--failed) $(addprefix --jobs ,$(JOBS))

clean: ## remove what was generated
	rm -rf _build handbook/labs
