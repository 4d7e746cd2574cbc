# make demo: a first search. make test: the whole default test suite.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-processors lint types docs check-wheel check-docs check-site check-web check-mcp check-cluster check-exports check-long check-models check-suites clean
demo: $(VENV)/.installed
	$(BIN)/passagent run example:add_layer_norm --iters 8 --islands 2 --seed 1

test: $(VENV)/.installed-test
	$(PYTEST)

# What compares values, with the arithmetic of older processors: no test may rest on one CPU's rounding.
NUMERIC := $(wildcard tests/test_expert*.py) $(addprefix tests/,test_kernels.py test_cpp_planned.py test_double.py \
  test_experience.py test_prompts.py test_deploy.py)
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder
test-processors: $(VENV)/.installed-test
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 $(PYTEST) $(NUMERIC)
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 $(PYTEST) $(NUMERIC)

# The documentation as a site, in site/.
docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --strict

# Slow doors, each behind a target of its own. Half of the time of most goes by on one core.
CHECK := $(BIN)/python -m pytest -n 2 --dist worksteal
check-wheel: $(VENV)/.installed-test
	$(BIN)/python -m pytest checks/test_wheel.py

check-docs: $(VENV)/.installed-test
	$(CHECK) checks/test_docs.py

check-site: $(VENV)/.installed-test
	$(CHECK) checks/test_site.py

# The page in a browser: Debian's chromium.
check-web: $(VENV)/.installed-test
	@command -v chromium >/dev/null || { echo "check-web needs a browser: apt-get install -y chromium"; exit 1; }
	@command -v npm >/dev/null || { echo "check-web needs npm, for axe-core: apt-get install -y npm"; exit 1; }
	$(CHECK) checks/test_page.py

# Other people's tools, each in an environment of its own under .envs (checks/environments.py).
check-exports: $(VENV)/.installed-test
	$(CHECK) checks/test_rl.py checks/test_exports.py checks/test_distill.py

# Pools over machines: Ray in an environment of its own, HTTP workers in network namespaces (root, iproute2).
check-cluster: $(VENV)/.installed-test
	@command -v ip >/dev/null && [ $$(id -u) = 0 ] || { echo "check-cluster: needs root and the command ip; install iproute2"; exit 2; }
	$(BIN)/python -m pytest -n 2 --dist loadgroup checks/test_cluster.py

# Other people's MCP programs and a coding agent's command line; npm and Node come from .envs, too.
check-mcp: $(VENV)/.installed-test
	$(BIN)/python -m pytest checks/test_mcp.py

# What `best` writes for other suites, read by flashinfer-bench's own classes.
check-suites: $(VENV)/.installed-test
	$(BIN)/python -m pytest checks/test_solutions.py

# What takes long: tests marked so, many kills, Inductor's compiler.
check-long: $(VENV)/.installed-test
	$(PYTEST) -m long
	$(CHECK) checks/test_collect.py checks/test_kills.py checks/test_inductor.py

# Whole models of transformers and timm, extracted; in an environment that has them.
check-models: $(VENV)/.installed-models
	$(BIN)/python -m pytest -m long tests/test_extract_models.py tests/test_deploy_models.py

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-test
	$(BIN)/mypy

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .[test]
	touch $@

$(VENV)/.installed-models: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .[models]
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .[docs]
	touch $@

clean:
	rm -rf $(VENV) dist build site *.egg-info
