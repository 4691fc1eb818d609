# A short front for CMake (CMakeLists.txt, CMakePresets.json). `make help` lists what there is.
# Every target installs what it lacks first (tools/install_deps.sh) and works on a bare Debian 12 or Ubuntu 24.04.
#   make ARCHS=90a-real        compile for these GPUs only (default: "90a-real;80-real;90-virtual"; kept until changed)
#   make run ARGS="..."        options of ./train_gpt2_fp8
RELEASE := build/release
CONFIGURE := $(if $(ARCHS),'-DARCHS=$(ARCHS)')

.DEFAULT_GOAL := build
.NOTPARALLEL: # Ninja uses all cores by itself
.PHONY: help build run test test-gpu sanitize-gpu asan debug bench format check-format clean deps-build deps-test configure

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

build: configure ## ./train_gpt2_fp8 and the tools in bin/ (what plain `make` does)
	cmake --build --preset release --target programs

run: build ## train a small model on the built-in sample: a few minutes, no download
	./train_gpt2_fp8 --config configs/nano.toml $(ARGS)

test: deps-test configure ## build and run every test that this machine can run
	cmake --build --preset release
	@tools/run_tests.py $(RELEASE)

test-gpu: deps-test configure ## the GPU tests alone; the comparison with Hugging Face needs torch and transformers
	cmake --build --preset release
	@tools/run_tests.py $(RELEASE) -L gpu

sanitize-gpu: deps-test configure ## the GPU suites on small shapes under compute-sanitizer (TOOLS, SUITES, JOBS)
	cmake --build --preset release
	@tests/gpu/run_sanitizer.sh $(RELEASE)/tests || [ $$? = 77 ]

asan: deps-test ## the CPU suite under the address and undefined-behaviour sanitizers
	cmake --preset asan
	cmake --build --preset asan
	@tools/run_tests.py build/asan

debug: deps-build ## build/debug/train_gpt2_fp8, for a debugger
	cmake --preset debug $(CONFIGURE)
	cmake --build --preset debug --target programs

bench: configure ## tables of speed: kernels, tokenizer and, on a GPU, training
	cmake --build --preset release --target bench
	@tools/run_benchmarks.sh $(RELEASE)

format: deps-test ## lay out all sources by .clang-format
	@tools/format.sh

check-format: deps-test ## fail if `make format` would change a file
	@tools/format.sh --check

clean: ## remove what was built; checkpoints, runs and .deps stay
	rm -rf build bin train_gpt2_fp8

configure: deps-build
	cmake --preset release $(CONFIGURE)

deps-build:
	@tools/install_deps.sh build

deps-test:
	@tools/install_deps.sh build test
