# make demo    set up and train the main job on this machine
# make test    set up, the SLURM cluster included, and run the tests
# make faults  the long tests: several faults in each run, much arbitrary input
# make slurm   every test on the cluster; RELEASE=trixie: on that Debian release's SLURM and Python
# make matrix  the same on every release; writes docs/versions.md
# make bench   the main benchmarks, short (15 minutes); rewrites the table in docs/benchmarks.md
# make gpu     what it does on this machine's GPUs; writes docs/gpu.md; PART=name: one part
# make check   linters and types           make lowest  the lowest supported versions
# make docs    the generated pages         make clean   what the above left behind
LAUNCHER_VENV ?= .venv
PY := $(LAUNCHER_VENV)/bin/python
PYTEST := $(PY) -m pytest --tb=short -ra -q

.PHONY: setup demo data test faults slurm matrix bench gpu check lowest docs clean packages apptainer pyxis

setup:
	@.ci/setup

# The tests run a real SLURM cluster where they can, as root on Debian or Ubuntu, and press Tab in the shells that have completion.
packages:
	@slurm/cluster check >/dev/null || echo "the cluster's tests are skipped"
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  slurm/cluster install gcc libc6-dev zsh fish patchelf squashfs-tools squashfuse; fi

apptainer: packages
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then .ci/apptainer; fi

# Renewed by `make slurm` where it was made once: `make test` does not wait for it.
pyxis:
	@$(if $(RELEASE),slurm/cluster enter --release $(RELEASE) --) .ci/pyxis

data: setup
	@if [ ! -d /usr/share/datasets/fashion-mnist ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  (apt-get -qq update; DEBIAN_FRONTEND=noninteractive apt-get -qq install -y dataset-fashion-mnist) >/dev/null 2>&1 || true; fi
	@$(PY) jobs/fashion_mnist.py

demo: setup data
	@.ci/demo

# Tests that measure time run first and alone; the rest share the cores, each file in one process: three, for many wait for SLURM.
test: packages
	@$(MAKE) -s -j 2 setup apptainer
	@$(MAKE) -s data || echo "Fashion-MNIST could not be had: its tests are skipped"
	@rc=0; \
	$(PYTEST) -m quiet || rc=1; \
	$(PYTEST) -m 'not quiet and not long' -n 3 --dist loadfile || rc=1; \
	exit $$rc

# Several faults in one run, at every world size, and the rarer variants; then forty times as much arbitrary input for every reader.
faults: setup apptainer
	@rc=0; \
	$(PYTEST) -m long -n 3 --dist loadfile || rc=1; \
	FUZZ=40 $(PYTEST) -m hypothesis -n 3 || rc=1; \
	exit $$rc

# As `make test`: what measures time comes first and alone. Files in their order: by default those with the fewest tests come last, and three of these take longest.
slurm:
ifneq ($(RELEASE),)
	@slurm/cluster enter --release $(RELEASE) -- $(MAKE) -s slurm RELEASE= LAUNCHER_VENV=.venv-$(RELEASE)
else
	@$(MAKE) -s packages
	@$(MAKE) -s -j 2 setup apptainer
	@if [ -d ".pyxis-$$(. /etc/os-release; echo "$$VERSION_CODENAME")" ]; then .ci/pyxis; fi
	@$(MAKE) -s data || echo "Fashion-MNIST could not be had: its tests are skipped"
	@rc=0; \
	$(PYTEST) tests/slurm tests/faults -m quiet --junitxml=build/slurm-quiet.xml || rc=1; \
	$(PYTEST) tests/slurm tests/faults -m 'not quiet' -n 3 --dist loadfile --no-loadscope-reorder --junitxml=build/slurm.xml || rc=1; \
	exit $$rc
endif

matrix: setup
	@.ci/matrix

bench: setup packages
	@$(PY) benchmarks/all.py

# Without set-up: torch may be the machine's own.
gpu:
	@.ci/gpu $(PART)

check: setup
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) .ci/size

lowest: setup
	@.ci/lowest

docs: setup
	@$(PY) docs/generate.py

clean:
	rm -rf .venv .venv-* .apptainer* .pyxis-* dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
