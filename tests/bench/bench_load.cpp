// What verified loading costs beside reading the same bytes: the checkpoint of a model is saved in a folder, then read,
// verified and loaded as a resume does it, from the page cache and, dropped from that before each time, from the disk.
//   bench_load [FOLDER] [MODEL]     default . gpt2 (124M: 1.49 GB); needs that room, twice in memory
// "read": all bytes into a small buffer, as verifying reads them. "read into memory": to where they stay, as loading
// does. By the same threads as the others, best of kRepeats.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>

#include "engine/base/rng.h"
#include "engine/base/stopwatch.h"
#include "engine/checkpoint/folder.h"
#include "engine/checkpoint/search.h"
#include "engine/checkpoint/verify.h"
#include "engine/hdf5/manifest.h"
#include "engine/hdf5/parallel_for.h"
#include "engine/model/model_state.h"

using namespace gpt2;

namespace {

constexpr int kRepeats = 7;

// A model that is nothing but its state.
class State : public StatefulModel {
 public:
  explicit State(const std::string& name)
      : config_(config_by_name(name)),
        table_(config_),
        memory_(new float[static_cast<size_t>(FlatSnapshot::floats(table_, whole(table_), true))],
                std::default_delete<float[]>()),
        spans_(FlatSnapshot::lay_out(memory_.get(), table_, whole(table_), true)) {
    const Rng rng(1);
    for (const std::span<float> values : {spans_.params, spans_.adam_m, spans_.adam_v})
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(rng.bits(i) >> 40);
  }

  const GPT2Config& config() const override { return config_; }
  std::unique_ptr<StateSnapshot> snapshot() override {
    return std::make_unique<FlatSnapshot>(table_, whole(table_), true, memory_, [] {});
  }
  void load_state(StateReader& reader) override { load_tensors(reader, table_, whole(table_), spans_); }
  void load_weights(StateReader&) override {}

 private:
  GPT2Config config_;
  ParameterTable table_;
  std::shared_ptr<float> memory_;
  FlatState spans_;
};

// read(begin, count) for every block, by the threads that verifying and loading have.
void for_blocks(const File& file, const std::function<void(int64_t, int64_t)>& read) {
  parallel_for(static_cast<size_t>((file.size() + kBlockBytes - 1) / kBlockBytes), [&](size_t block) {
    const int64_t begin = static_cast<int64_t>(block) * kBlockBytes;
    read(begin, std::min(kBlockBytes, file.size() - begin));
  });
}

void read_all(const File& file, int64_t piece) {
  for_blocks(file, [&](int64_t begin, int64_t count) {
    std::vector<std::byte> buffer(static_cast<size_t>(piece));
    for (int64_t at = 0; at < count; at += piece)
      file.read_at(begin + at, std::span(buffer).first(static_cast<size_t>(std::min(piece, count - at))));
  });
}

void read_into(const File& file, std::span<std::byte> memory) {
  for_blocks(file, [&](int64_t begin, int64_t count) {
    file.read_at(begin, memory.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)));
  });
}

void drop_from_page_cache(const std::string& path) { // it is on the disk: saving waits for that
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  close(file);
}

double seconds_of(const std::function<void()>& before, const std::function<void()>& body) {
  double best = 1e30;
  for (int i = 0; i < kRepeats; ++i) {
    before();
    const Stopwatch watch;
    body();
    best = std::min(best, watch.seconds());
  }
  return best;
}

} // namespace

int main(int count, char** arguments) {
  const std::string parent = count > 1 ? arguments[1] : ".", model = count > 2 ? arguments[2] : "gpt2";
  const std::string folder = parent + "/bench_load_" + std::to_string(getpid());
  try {
    State state(model);
    RankGroup alone;
    TrainState train;
    train.step = 1;
    const std::string checkpoint = CheckpointFolder(folder, "run").save(state, train, false, alone);
    const File file = File::open(rank_file(checkpoint, 0), ExitCode::checkpoint);
    std::vector<std::byte> memory(static_cast<size_t>(file.size()));
    const double gigabytes = 1e-9 * static_cast<double>(file.size());

    struct Row {
      const char* name;
      std::function<void()> body;
    };
    const Row rows[] = {
        {"read", [&] { read_all(file, 1 << 20); }},
        {"verify",
         [&] {
           if (!why_invalid(checkpoint).empty()) throw std::runtime_error(why_invalid(checkpoint));
         }},
        {"read into memory", [&] { read_into(file, memory); }},
        {"load, verified", [&] { load_checkpoint(checkpoint, state); }},
    };
    for (const bool cold : {false, true}) {
      std::printf("%s, %.2f GB\n", cold ? "from the disk" : "from the page cache", gigabytes);
      double reading = 0;
      for (size_t i = 0; i < std::size(rows); ++i) {
        const double seconds = seconds_of(
            [&] {
              if (cold) drop_from_page_cache(file.path());
            },
            rows[i].body);
        if (i % 2 == 0) reading = seconds;
        std::printf("  %-18s %7.3f s %7.2f GB/s", rows[i].name, seconds, gigabytes / seconds);
        if (i % 2 == 1) std::printf("   %5.2f of reading", seconds / reading);
        std::printf("\n");
        std::fflush(stdout);
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_load: %s\n", error.what());
    std::filesystem::remove_all(folder);
    return 1;
  }
  std::filesystem::remove_all(folder);
}
