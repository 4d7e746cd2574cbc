# make demo: a first search. make test: the whole default test suite.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# Tests and checks start many processes: what Python compiles is kept, and threads of torch that wait do not spin.
unexport PYTHONDONTWRITEBYTECODE
export OMP_WAIT_POLICY := passive

.PHONY: demo test test-processors lint types docs check-wheel check-docs check-site check-web check-mcp check-cluster check-exports check-long check-models clean
demo: $(VENV)/.installed
	$(BIN)/passagent run example:add_layer_norm --iters 8 --islands 2 --seed 1

test: $(VENV)/.installed-test
	$(PYTEST)

# What compares floating-point values, with the arithmetic of older processors: no test may rest on one CPU's rounding.
NUMERIC := $(addprefix tests/test_expert,.py _cpu.py _operators.py _special_values.py) \
  $(addprefix tests/test_,cpp_planned.py double.py deploy.py deployed.py index_out_of_range.py \
    library_calls.py passes.py rewrites.py standalone.py) \
  tests/test_expert_cuda.py::test_a_convolution_with_its_bias_added_behind_it_equals_eager \
  tests/test_expert_wording.py::test_a_number_that_inference_does_not_read_may_be_any \
  $(addprefix tests/test_kernels.py::test_,every_half_value_is_converted_and_rounded_as_torch_does \
    chunk_loads_and_stores_agree_with_the_conversions vectorised_math_is_accurate_and_keeps_infinities \
    exponentials_are_exact_to_a_unit_in_the_last_place round_to_is_a_store_and_a_load) \
  tests/test_prompts.py::test_how_eager_rounds_a_number_is_told_as_measured
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder
# Inductor keeps what it compiles by source, not by these processors: each has a cache of its own.
INDUCTOR_CACHE := TORCHINDUCTOR_CACHE_DIR=$(abspath $(VENV))/.inductor
test-processors: $(VENV)/.installed-test
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 $(INDUCTOR_CACHE)-default $(PYTEST) $(NUMERIC)
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 $(INDUCTOR_CACHE)-avx2 $(PYTEST) $(NUMERIC)

# The documentation as a site, in site/.
docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --strict

# Slow doors, each behind a target of its own. Half of the time of most goes by on one core.
CHECK := $(BIN)/python -m pytest -n 2 --dist worksteal
check-wheel: $(VENV)/.installed-test
	$(CHECK) checks/test_wheel.py

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

# What takes long: tests marked so, a KernelBench problem from import to `best`, many kills, Inductor's compiler.
check-long: $(VENV)/.installed-test
	$(PYTEST) -m long
	$(CHECK) checks/test_collect.py checks/test_kernelbench.py checks/test_kills.py checks/test_inductor.py

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
