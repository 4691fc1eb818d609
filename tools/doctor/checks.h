// The groups of checks, one file each, in the order of execution.
#pragma once

#include <optional>
#include <string>

#include "tools/doctor/finding.h"
#include "tools/plan/dry_run.h"

namespace gpt2 {

void check_machine(const Report& report); // check_machine.cpp: program version, CPU cores, memory

// check_gpu.cpp: driver, GPUs, libraries, FP8 GEMMs and rates of the first GPU, NCCL. Without a GPU, the reason.
void check_gpus(const Options& options, const Report& report);

void check_cpu_engine(const Report& report); // check_cpu.cpp: an emulated FP8 GEMM, rates of GEMM and memcpy

// check_data.cpp: the run's data as the trainer opens it (ends of files), and all bytes of `verified`: a dataset folder
// or a glob of shards; "": none.
void check_data(const RunData* data, const std::string& verified, const Report& report);

// check_storage.cpp: free space for the run's checkpoints, write speed, one checkpoint saved, verified and loaded.
void check_storage(const PlannedRun* run, const std::string& checkpoint_dir, const Report& report);

// check_run.cpp: memory, FP8 share, 20 steps in each precision, expected end of the run.
void check_run(const PlannedRun& run, const Report& report);

} // namespace gpt2
