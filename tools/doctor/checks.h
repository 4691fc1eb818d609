// bin/doctor: all checks, and their groups, one file each, in the order of execution.
#pragma once

#include <string>
#include <vector>

#include "engine/model/model.h"
#include "tools/doctor/finding.h"
#include "tools/plan/dry_run.h"

namespace gpt2 {

// Runs all checks. Throws Error(usage) for options that the trainer refuses; everything else is a finding.
std::vector<Finding> examine(const CommandLine& command_line, const std::string& verified_data, const Report& report);

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

// fp8_share.cpp: whether FP8 GEMMs work on the run's GPU; the share of FP8 in a run, in FLOPs for both engines and in
// time on a GPU. `model` trains in FP8 and may run one of its micro-steps.
bool gpu_has_fp8(const PlannedRun& run);
Finding fp8_share(const PlannedRun& run, Model& model);
// Forward + backward FLOPs per token, attention included: 6 N + 12 L C T (the PaLM appendix's count; the position table
// is not counted, the tied LM head is).
double flops_per_token(const GPT2Config& config, int seq_len);

} // namespace gpt2
