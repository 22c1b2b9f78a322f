# Everything a checkout needs, from nothing but Python 3.11+, make and git.
PYTHON ?= python3
BIN = .venv/bin
TEXT_OUT = demo

.PHONY: demo test tiny lint format types unit bench house docs screenshots train release smoke clean

demo: .venv/user ## look at a text through the built-in model; writes demo/heads.html and demo/heads.png
	mkdir -p $(TEXT_OUT)
	$(BIN)/clearhead look --html $(TEXT_OUT)/heads.html --png $(TEXT_OUT)/heads.png

test: lint types unit ## everything that must hold before a commit lands

tiny: .venv/dev ## a few seconds that touch every public promise
	$(BIN)/python -m pytest -m tiny

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: .venv/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: .venv/dev
	$(BIN)/mypy

unit: .venv/dev ## every test, whole files at a time on every core; pytest alone runs them in one process
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

bench: .venv/user ## speed and memory against PyTorch's own attention, on this machine
	$(BIN)/clearhead bench --quick
	$(BIN)/python benchmarks/memory.py

house: .venv/dev ## start-up times, sizes, dependencies and lines, beside what they should be
	$(BIN)/python benchmarks/house.py

release: .venv/dev ## wheel and source archive into dist/, their contents checked
	rm -rf dist
	$(BIN)/python -m release.contents

smoke: release ## what dist/ has in fresh environments, the wheel without extras and with each: some minutes
	$(BIN)/python -m release.smoke dist/*.whl
	$(BIN)/python -m release.smoke dist/*.tar.gz none

docs: .venv/dev ## write docs/reference/ from the docstrings and the command's own help, and the site to site/index.html
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build
	@echo "open site/index.html"

screenshots: .venv/dev ## make the pictures of the viewer in docs/pictures/ again; needs Chromium
	$(BIN)/python docs/screenshots.py

train: .venv/user ## make the built-in model again, about an hour on two cores; can be interrupted and resumed
	$(BIN)/python -m training

clean:
	rm -rf .venv dist site $(TEXT_OUT) .mypy_cache .ruff_cache .pytest_cache .hypothesis

# torch first and alone, so that its exact build is settled before anything else asks for a range.
.venv/user: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "clearhead needs Python 3.11 or newer; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv/dev: .venv/user
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
