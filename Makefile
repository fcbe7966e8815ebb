# make demo    set up and run the main job end to end
# make test    set up and run everything CI runs
# make check   the quick part: style, types, tests that take no time
# make fuzz    attack every reader for an hour, or FUZZ_MINUTES; goes on where it was stopped
# make sanitize   tests of the native kernels, compiled with checks of addresses and of arithmetic
# make bench   measure, every question is one file in benchmarks/, and write its page: half an hour
# make figures run what is missing of the paper's synthetic experiments, draw all, judge every claim
# make evidence DATA=folder   the same for the experiments on real data (docs/evidence.md): hours

unexport PYTHONDONTWRITEBYTECODE  # the many processes that tests start need not compile anew

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

STUDIES := figure-1 figure-2 pool-size temperature figure-1-priority figure-2-priority shards

FUZZ_MINUTES := 60

.PHONY: demo test check lint browser fuzz sanitize bench figures evidence clean

demo: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,demo]" \
	  || echo "The real log cannot be installed; the demo makes one up." >&2
	rm -rf demo
	$(BIN)/tapas demo

test: lint browser
	$(BIN)/python -m pytest -n 2

check: lint
	$(BIN)/python -m pytest -n 2 -m "not slow"

browser: $(READY)
	sh tests/browser/install.sh

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

fuzz: $(READY)
	end=$$(( $$(date +%s) + 60 * $(FUZZ_MINUTES) )); \
	PYTHONPATH=tests:. $(BIN)/python -m fuzz.attack --seed $$end || exit 1; \
	while [ $$(date +%s) -lt $$end ]; do \
	  nice $(BIN)/python -m pytest tests/fuzz --hypothesis-profile=fuzz || exit 1; \
	done

SANITIZED := build/sanitized
sanitize: $(READY)
	rm -rf $(SANITIZED)
	mkdir -p build
	cp -r src $(SANITIZED)
	rm -f $(SANITIZED)/tapas/native/_kernels*
	g++ -O3 -g -std=c++17 -ffp-contract=fast -fopenmp -fPIC -shared -fsanitize=address,undefined \
	  -fno-sanitize-recover=undefined -D_GLIBCXX_ASSERTIONS src/tapas/native/kernels.cpp \
	  -o $(SANITIZED)/tapas/native/_kernels$$($(BIN)/python -c \
	  "from importlib.machinery import EXTENSION_SUFFIXES as s; print(s[0])")
	PYTHONPATH=$(SANITIZED) ASAN_OPTIONS=detect_leaks=0 \
	  LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" \
	  $(BIN)/python -m pytest -p no:cacheprovider tests/unit/native tests/contracts/test_selection.py \
	  tests/unit/tables/test_gradients.py --deselect tests/unit/native/test_library.py \
	  -k "not run_out_of_memory"  # which ends a process with checked addresses

bench: $(READY)
	@start=$$(date +%s); failed=; \
	for file in benchmarks/bench_*.py benchmarks/page.py; do \
	  echo; echo "== $$file"; \
	  $(BIN)/python $$file || failed="$$failed $$file"; \
	done; \
	echo; echo "bench took $$(( ($$(date +%s) - start + 59) / 60 )) minutes"; \
	if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

figures: $(READY)
	for study in $(STUDIES); do $(BIN)/python -m experiments $$study || exit 1; done
	$(BIN)/python -m experiments claims

evidence: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,demo]"
	$(BIN)/python -m experiments figure-3 --data "$(DATA)"
	$(BIN)/python -m experiments table-1 --data "$(DATA)"
	$(BIN)/python -m experiments table-1
	$(BIN)/python -m experiments sweeps --data "$(DATA)"

$(READY): pyproject.toml setup.py constraints.txt $(wildcard src/tapas/native/*.h src/tapas/native/*.cpp)
	python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis demo
