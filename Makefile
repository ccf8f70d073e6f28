# Everything here works from a fresh clone: the environments are made on first use and reused after.
.DEFAULT_GOAL := help
.PHONY: help demo examples test test-all test-nightly coverage campaign gpu lint fix docs setup setup-b bench clean
# Arguments of the program:  make demo ARGS='--ranks 4 2'
ARGS ?=
RANKS ?= 2
PARTS ?= serial mpi b

help:  ## show this
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/  make \1|\2/p' Makefile | awk -F '|' '{printf "%-18s%s\n", $$1, $$2}'

demo: setup  ## train LeNet5 on 2 ranks, kill it, resume with 1, kill it, end with 3
	@scripts/dev/in-venv.sh python examples/demo.py $(ARGS)

examples: setup  ## run the examples at small settings, their output in build/examples; some: ARGS="lms_mnist_session lms_large"
	@scripts/dev/examples.sh $(ARGS)

test:  ## every promise at its cheapest level, in about 5 minutes
	@scripts/dev/test.sh quick

test-all:  ## every promise with real ranks, kills, schedulers and trainings: serial, under mpirun, on stack B; PARTS="serial mpi b" chooses
	@scripts/dev/test.sh $(PARTS)

test-nightly:  ## what test-all leaves out: all rows of long tables, and what takes minutes
	@scripts/dev/test.sh nightly

coverage: setup  ## show each feature of the original systems, a table of rows (docs/features.md); some: ARGS="T1 K3"
	@scripts/dev/coverage.sh $(ARGS)

campaign: setup  ## faults by the thousand, in full; a part: ARGS="corruption --count 500"; see tests/campaign/README.md
	@scripts/dev/campaign.sh $(ARGS)

gpu:  ## on a machine with a GPU: the tests marked gpu and a benchmark, from the sources, without a network; ARGS=--dry-run
	@scripts/dev/gpu.sh $(ARGS)

lint:  ## ruff, mypy, import-linter, shellcheck, clang-format, clang for AArch64, codespell, words
	@scripts/dev/lint.sh

fix:  ## let the formatters mend what they can, then lint
	@scripts/dev/lint.sh --fix

docs: setup  ## the documentation site in build/site, with warnings as errors
	@scripts/dev/docs.sh

setup:  ## stack A in .venv: TensorFlow 2.15, Horovod, MPI; builds the native part if it changed
	@scripts/dev/setup.sh a

setup-b:  ## stack B in .venv-b: TensorFlow 2.21, Keras 3, NumPy 2
	@scripts/dev/setup.sh b

bench:  ## measure against C and other libraries, tables and plots in build/bench; ARGS="--quick", RANKS=2, see bench/README.md
	@RANKS=$(RANKS) bench/run.sh $(ARGS)

clean:  ## remove the environments and what was built; your runs stay
	rm -rf .venv .venv-b .venv-lint .venv-peers .venv-fuzz .venv-docs build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f hpcckpt/native/_tf_ops-*.so hpcckpt/native/_lms_ops-*.so
	find hpcckpt tests examples bench -name __pycache__ -type d -prune -exec rm -rf {} +
