# A short front for CMake (CMakeLists.txt, CMakePresets.json). `make help` lists what there is.
# Every target installs what it lacks first (tools/install_deps.sh) and works on a bare Debian 12 or Ubuntu 24.04.
#   make ARCHS=all             code for every GPU that the engine knows, or a list such as "90a-real;80-real"; kept until
#                              changed. The default, auto: the GPUs of this machine; without one, Hopper
#   make NATIVE=OFF            CPU code for any machine of this kind, not for this one alone; kept until changed
#   make run ARGS="..."        options of ./train_gpt2_fp8
#   make install PREFIX=DIR    DIR/lib/train_gpt2_fp8/ and the link DIR/bin/train_gpt2_fp8; the default is /usr/local
RELEASE := build/release
OPTIONS := $(if $(ARCHS),'-DARCHS=$(ARCHS)') $(if $(NATIVE),'-DGPT2_NATIVE=$(NATIVE)')
# `make run` and `make test` build what they will run on: without a GPU, and until `make` has built both engines, the CPU engine
# alone. `make test ARCHS=all` compiles both.
PRESET = $(if $(or $(ARCHS),$(shell tools/gpu_archs.sh),$(wildcard $(RELEASE)/train_gpt2_fp8)),release,cpu-only)

# $(call configure,PRESET): a build folder that came along with a copied or moved tree is set up anew.
define configure
  @home=$$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' build/$(1)/CMakeCache.txt 2>/dev/null) || :; \
    [ -z "$$home" ] || [ "$$home" -ef . ] || fresh=--fresh; cmake $$fresh --preset $(1) $(OPTIONS)
endef
# $(call build,PRESET,TARGETS): in its own folder; links in the root of the tree lead to what was built last.
define build
  cmake --build --preset $(1) --target $(2)
  @[ -L bin ] || rm -rf bin
  @ln -sfn build/$(1)/bin bin && ln -sf build/$(1)/train_gpt2_fp8 train_gpt2_fp8
endef

# The trainer alone: no tool is needed to train. --plan is a program of its own.
RUN_TARGET = $(if $(findstring --plan,$(ARGS)),programs,train_gpt2_fp8)
PREFIX ?= /usr/local

.DEFAULT_GOAL := build
.NOTPARALLEL: # Ninja uses all cores by itself
.PHONY: help build run test test-gpu sanitize-gpu parity faults asan debug bench format check-format tidy tensorboard clean deps-build \
        deps-test release install package

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

build: deps-build ## ./train_gpt2_fp8 and the tools in bin/ (what plain `make` does)
	$(call configure,release)
	$(call build,release,programs)

run: deps-build ## train a small model on the built-in sample: a few minutes, no download
	$(call configure,$(PRESET))
	$(call build,$(PRESET),$(RUN_TARGET))
	./train_gpt2_fp8 --config configs/nano.toml $(ARGS)
	@[ -e bin/generate ] || echo "the tools in bin/ are not built yet: make"

test: deps-test ## build and run every test that this machine can run
	$(call configure,$(PRESET))
	@tools/run_tests.py --begin build/$(PRESET)
	$(call build,$(PRESET),all rooms)
	@tools/run_tests.py build/$(PRESET)

test-gpu: release ## the GPU tests alone; the comparison with Hugging Face needs torch and transformers
	$(call build,release,all)
	@tools/run_tests.py $(RELEASE) -L gpu

sanitize-gpu: release ## the GPU suites on small shapes under compute-sanitizer (TOOLS, SUITES, JOBS)
	$(call build,release,all)
	@tests/gpu/run_sanitizer.sh $(RELEASE)/tests || [ $$? = 77 ]

# Few seeds in little time: it fails where the gap is surely beyond the bar. The curves of a build stay: a second call goes on.
parity: build ## is FP8's loss that of BF16? ten minutes on a GPU (ARGS="--train_data GLOB --val_data GLOB")
	@tests/parity/loss_gap.py --seeds 8 --judge refute --budget 540 --picture runs/parity/loss_gap.svg \
	  --out runs/parity/$$(cat $(RELEASE)/train_gpt2_fp8 $(RELEASE)/lib/libgpt2.so | sha256sum | head -c 12) $(ARGS) \
	  || [ $$? = 77 ]

faults: release ## kills, crashes, full disks, damage and signals in real runs of the CPU engine: an hour (ARGS="TEST...")
	@tools/install_deps.sh faults
	$(call build,release,all)
	@$(or $(wildcard .deps/venv/bin/python3),python3) tests/faults/run.py $(RELEASE) --full $(ARGS)
	@[ -n "$(ARGS)" ] || GPT2_BIT_FLIPS=10000 GPT2_TRUNCATIONS=1000 $(RELEASE)/tests/test_manifest
	@[ -n "$(ARGS)" ] || { tests/e2e/ranks.py $(RELEASE)/train_gpt2_fp8 --times 20 && { tests/fuzz/run.sh $(RELEASE) || [ $$? = 77 ]; }; }

asan: deps-test ## the CPU suite under the address and undefined-behavior sanitizers
	$(call configure,asan)
	@tools/run_tests.py --begin build/asan
	cmake --build --preset asan
	@tools/run_tests.py build/asan

debug: deps-build ## build/debug/train_gpt2_fp8, for a debugger
	$(call configure,debug)
	cmake --build --preset debug --target programs

install: build ## into PREFIX [/usr/local]: lib/train_gpt2_fp8/ and bin/train_gpt2_fp8
	@tools/make_package.sh $(RELEASE) install $(PREFIX)

package: deps-build ## build/train_gpt2_fp8-VERSION-MACHINE.tar.zst: for any machine and every GPU, runs where it is unpacked
	$(call configure,package)
	cmake --build --preset package --target programs
	@tools/make_package.sh build/package package build

bench: deps-build ## tables of speed: kernels, tokenizer and, on a GPU, training
	$(call configure,release)
	cmake --build --preset release --target bench
	@tools/run_benchmarks.sh $(RELEASE)

format: deps-test ## lay out all sources by .clang-format
	@tools/format.sh

check-format: deps-test ## fail if `make format` would change a file
	@tools/format.sh --check

tidy: ## clang-tidy over the C++ sources, by .clang-tidy
	@tools/install_deps.sh build lint
	$(call configure,cpu-only)
	@tools/tidy.sh build/cpu-only

tensorboard: ## TensorBoard over runs/ (ARGS)
	@tools/start_tensorboard.sh $(ARGS)

clean: ## remove what was built; checkpoints, runs and .deps stay
	rm -rf build bin lib train_gpt2_fp8

release: deps-test
	$(call configure,release)

deps-build:
	@tools/install_deps.sh build

deps-test:
	@tools/install_deps.sh build test
