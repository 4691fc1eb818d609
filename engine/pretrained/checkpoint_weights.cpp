// Weights of a checkpoint, without the optimizer state.
#include "engine/base/error.h"
#include "engine/checkpoint/format.h"
#include "engine/checkpoint/verify.h"
#include "engine/pretrained/weight_source.h"

namespace gpt2 {
namespace {

class CheckpointWeights : public WeightSource {
 public:
  explicit CheckpointWeights(const std::string& checkpoint) : WeightSource(checkpoint), open_(verified(checkpoint)) {
    config_ = open_.config;
  }

 private:
  static OpenCheckpoint verified(const std::string& checkpoint) {
    const std::string why = why_invalid(checkpoint);
    if (why.empty()) return open_checkpoint(checkpoint);
    const std::string before = valid_one_before(checkpoint);
    throw Error(ExitCode::checkpoint, why,
                before.empty() ? "copy it again, or name another one" : "name the one before it: " + before);
  }

  void fetch(const std::string& name, int64_t begin, std::span<float> values) override {
    open_.model->read_range("params/" + name, begin, values);
  }

  OpenCheckpoint open_;
};

} // namespace

std::unique_ptr<WeightSource> open_checkpoint_weights(const std::string& checkpoint) {
  return std::make_unique<CheckpointWeights>(checkpoint);
}

} // namespace gpt2
