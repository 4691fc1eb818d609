// The groups of checks, one file each, in the order in which they are made.
#pragma once

#include <optional>
#include <string>

#include "engine/train/plan_run.h"
#include "tools/doctor/finding.h"

namespace gpt2 {

void check_machine(const Report& report); // check_machine.cpp: the program, the processor, its memory

// check_gpu.cpp: driver, GPUs, libraries, FP8 products and rates of the first, NCCL among all. Without one it says why.
void check_gpus(const Options& options, const Report& report);

void check_cpu_engine(const Report& report); // check_cpu.cpp: an emulated FP8 product, the rates of products and copies

// check_data.cpp: what the run would read (ends of files, as the trainer does), and every byte of `verified` ("":
// none), which is a data set's folder or a glob of shards.
void check_data(const RunData* data, const std::string& verified, const Report& report);

// check_storage.cpp: room for the run's checkpoints, the speed of writing, a checkpoint that is saved, verified and
// read.
void check_storage(const PlannedRun* run, const std::string& checkpoint_dir, const Report& report);

// check_run.cpp: memory, what FP8 covers, 20 steps in each precision, the end of the run.
void check_run(const PlannedRun& run, const Report& report);

} // namespace gpt2
