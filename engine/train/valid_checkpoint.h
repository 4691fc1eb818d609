// Which checkpoint --resume leads to, verified.
#pragma once

#include "engine/dist/rank_group.h"
#include "engine/train/options.h"

namespace gpt2 {

// --resume becomes the checkpoint that rank 0 finds, for all ranks, once they have verified it together. Where it is
// damaged and --resume said no certain step (latest, a run), the newest valid one of its run takes its place, and notes
// say so; else AgreedError(checkpoint), with that one as the hint.
CommandLine with_valid_checkpoint(const CommandLine& command_line, RankGroup& group);

} // namespace gpt2
