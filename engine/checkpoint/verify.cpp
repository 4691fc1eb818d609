#include "engine/checkpoint/verify.h"

#include <algorithm>
#include <filesystem>

#include "engine/checkpoint/format.h"
#include "engine/checkpoint/names.h"
#include "engine/checkpoint/search.h"
#include "engine/hdf5/manifest.h"
#include "engine/hdf5/parallel_for.h"
#include "engine/ranks/agreement.h"

namespace gpt2 {
namespace {

namespace fs = std::filesystem;

// Blocks rank, rank + ranks, ... counted over all files.
void verify_share(const std::string& checkpoint, const Manifest& manifest, int rank, int ranks) {
  struct Block {
    size_t file, number;
  };
  std::vector<Block> share;
  std::vector<File> files;
  size_t counted = 0;
  for (const FileHashes& hashes : manifest.files) {
    for (size_t number = 0; number < hashes.blocks.size(); ++number) {
      if (counted++ % static_cast<size_t>(ranks) == static_cast<size_t>(rank)) share.push_back({files.size(), number});
    }
    files.push_back(File::open(checkpoint + "/" + hashes.name, ExitCode::checkpoint));
  }
  parallel_for(share.size(), [&](size_t i) {
    const auto [file, number] = share[i];
    const FileHashes& hashes = manifest.files[file];
    const int64_t begin = static_cast<int64_t>(number) * kBlockBytes;
    if (hash_of_range(files[file], begin, hashes.block_bytes(number)) != hashes.blocks[number])
      throw damaged_block(files[file].path(), hashes, number);
  });
}

} // namespace

std::optional<Error> find_fault(const std::string& checkpoint, RankGroup& group) {
  std::optional<Error> mine;
  {
    const auto busy = group.busy(); // a slow disk may take longer than the timeout of the other ranks
    mine = attempt([&] {
      verify_share(checkpoint, manifest_of(checkpoint), group.rank(), group.ranks());
      if (group.leads()) read_state_header(checkpoint);
    });
    if (mine && !is_complete(checkpoint)) mine = removed_meanwhile(checkpoint);
  }
  std::optional<Error> fault = first_error(group, mine); // the same fault on all ranks
  if (fault && fault->code() != ExitCode::checkpoint) throw_agreed(group, *fault);
  return fault;
}

std::string why_invalid(const std::string& checkpoint) {
  RankGroup alone;
  const std::optional<Error> fault = find_fault(checkpoint, alone);
  return fault ? fault->what() : "";
}

Error removed_meanwhile(const std::string& checkpoint) {
  return Error(ExitCode::checkpoint, checkpoint + " was removed meanwhile: a run keeps only some of its checkpoints",
               "--list_checkpoints and bin/ckpt list show those that are there now");
}

bool is_removal(const Error& fault) {
  return fault.code() == ExitCode::checkpoint && fault.hint() == removed_meanwhile("").hint();
}

bool is_lost(const Error& fault) {
  return is_removal(fault) || (fault.code() == ExitCode::checkpoint && fault.hint().empty());
}

std::vector<std::string> others_of_run(const std::string& checkpoint) {
  const std::string parent = fs::path(checkpoint).parent_path().string();
  std::vector<std::string> paths = checkpoints_in(parent.empty() ? "." : parent);
  std::erase_if(paths, [&](const std::string& path) { return step_of(path) == step_of(checkpoint); });
  std::ranges::reverse(paths);
  return paths;
}

std::string valid_one_before(const std::string& checkpoint) {
  for (const std::string& other : others_of_run(checkpoint))
    if (step_of(other) < step_of(checkpoint) && why_invalid(other).empty()) return other;
  return "";
}

std::string hint_if_damaged(const std::string& checkpoint) {
  const std::string before = valid_one_before(checkpoint);
  return before.empty() ? "start a new run without --resume: the run has no valid older checkpoint"
                        : "resume from the one before it: --resume " + before;
}

} // namespace gpt2
