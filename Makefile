# What can be done here, one line each; `make` alone lists it. Longer recipes are scripts in hack/.
# Everything cargo builds has one set of features, so that no step compiles again what another has.

.DEFAULT_GOAL := help
.PHONY: help demo lab test test-all e2e bench gen lint docs-check build lab-tools setup

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Start a control plane and show the product at work
	@hack/run.sh demo

lab: ## The same control plane, operator and objects, to try things by hand until Ctrl-C
	@hack/run.sh demo --stay

test: ## Lint, unit tests, laws and the core of the end-to-end tests: what CI runs
	@hack/test.sh

test-all: ## As test, with the tests that take long
	@hack/test.sh --all

e2e: ## End-to-end tests; T=lab runs e2e/tests/lab.rs, T=word those with the word in their name
	@hack/e2e.sh "$(T)"

bench: ## One measurement, B=name; the last line of its output is JSON
	@hack/run.sh bench "$(B)"

gen: setup ## Write the generated files again
	@hack/gen.sh

lint: setup ## Format, clippy, licences, documentation, generated files, paths in documents
	@hack/lint.sh

docs-check: ## Do the paths that the documents name exist?
	@hack/docs-check.sh

build: setup ## All programs, into target/debug
	cargo build --workspace --all-features --bins

lab-tools: ## Build etcd and Kubernetes for the end-to-end tests, once per version
	@hack/lab-tools.sh

setup: ## Install what building needs
	@hack/setup.sh
