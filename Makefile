# Each target sets up everything that it needs, in .venv and build/, and can be run again at any time.
#
#   make demo       the main job on a real model: rewrite, run both, one table
#   make test       style, types and all tests
#   make corpus     rewrite, run and check each model of the corpus, one row each
#   make bench      speed on this machine, as in the README
#   make wheel      what pip installs, in dist/
#   make gpu-test   the tests that need an NVIDIA GPU; installs nothing and uses the machine's own python3
#   make nightly    everything, with far more random cases, sanitizers and freshly exported models
#
# Variables: PYTHON, CXX, ORTFLASH_CUDA, ORTFLASH_CUDA_ARCHITECTURES (scripts/setup_venv.sh); PYTEST_ARGS, CORPUS_ARGS.
.PHONY: demo test corpus bench wheel gpu-test nightly lint sanitize setup setup-export
.DEFAULT_GOAL := demo
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
PYTHON ?= python3
CPP_FILES = $$(find plugin_src -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh')
SCRIPTS = $$(find cmake plugin_src -name '*.py')
WORKERS := -n 2

export PYTHON ORTFLASH_CUDA ORTFLASH_CUDA_ARCHITECTURES ORTFLASH_INSTALL
export PYTHONSAFEPATH := 1  # else python -m would find the sources, which aren't laid out as the package is

demo: setup
	@$(BIN)/ortflash demo

test: setup lint
	@$(BIN)/pytest $(WORKERS) $(PYTEST_ARGS)

corpus: setup
	@$(BIN)/python -m tests.corpus $(CORPUS_ARGS)

bench: setup
	@$(BIN)/ortflash bench kernel
	@$(BIN)/ortflash bench model $$(ls models/bert4096-*.onnx) --model-type bert

wheel:
	@ORTFLASH_INSTALL=wheel scripts/setup_venv.sh
	@ls -l dist

gpu-test:
	@tests/gpu/run.sh $(PYTEST_ARGS)

nightly: setup-export lint sanitize
	@ORTFLASH_GRAMMAR_EXAMPLES=5000 $(BIN)/pytest $(WORKERS) --hypothesis-profile=nightly $(PYTEST_ARGS)

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/clang-format --dry-run -Werror $(CPP_FILES)
	@scripts/source_tree.sh
	@MYPYPATH=build/tree $(BIN)/mypy --config-file pyproject.toml -p ortflash
	@MYPYPATH=build/tree:tests:models $(BIN)/mypy tests/*.py
	@for script in $(SCRIPTS); do $(BIN)/mypy $$script || exit 1; done

sanitize: setup
	@scripts/sanitize.sh

setup:
	@scripts/setup_venv.sh

setup-export:
	@scripts/setup_venv.sh export
