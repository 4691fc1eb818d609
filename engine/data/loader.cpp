#include "engine/data/loader.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/rng.h"

namespace gpt2 {

// Micro-batch k is in slot k % prefetch. A thread may read k once k - prefetch has been returned: threads finish in any
// order, and next() returns micro-batches in theirs.
struct Loader::Impl {
  struct Slot {
    bool ready = false;
    HostBatch batch;
    std::exception_ptr error; // instead of a batch
  };

  Impl(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options, int64_t position);

  int64_t sequence_of(int64_t sample) const;
  HostBatch read(int64_t number) const;
  void read_ahead(std::stop_token stop);
  HostBatch take();

  const std::shared_ptr<const Dataset> dataset;
  const LoaderOptions options;
  const int64_t start; // position at construction

  std::mutex mutex; // guards slots, next_to_read, returned
  std::condition_variable_any slot_freed, slot_filled;
  std::vector<Slot> slots;
  int64_t next_to_read = 0, returned = 0; // micro-batches since start

  std::vector<std::jthread> threads; // last: joined before the members above are destroyed
};

Loader::Impl::Impl(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options, int64_t position)
    : dataset(std::move(dataset)), options(options), start(position), slots(static_cast<size_t>(options.prefetch)) {
  for (int i = 0; i < options.threads && options.prefetch > 0; ++i) {
    threads.emplace_back([this](std::stop_token stop) { read_ahead(std::move(stop)); });
  }
}

// The order that ranks and micro-batches slice.
int64_t Loader::Impl::sequence_of(int64_t sample) const {
  const int64_t epoch = sample / dataset->sequences();
  const auto index = static_cast<uint64_t>(sample % dataset->sequences());
  if (!options.shuffle) return static_cast<int64_t>(index);
  const uint64_t epoch_seed = Rng(options.seed, static_cast<uint64_t>(epoch)).bits(0);
  return static_cast<int64_t>(Permutation(static_cast<uint64_t>(dataset->sequences()), epoch_seed)(index));
}

HostBatch Loader::Impl::read(int64_t number) const {
  const auto seq_len = static_cast<size_t>(dataset->seq_len());
  const size_t tokens = static_cast<size_t>(options.batch_size) * seq_len;
  HostBatch batch{options.batch_size, dataset->seq_len(), std::vector<int32_t>(tokens), std::vector<int32_t>(tokens)};

  const int64_t first_sample = start + (number * options.ranks + options.rank) * options.batch_size;
  for (int row = 0; row < options.batch_size; ++row) {
    const size_t at = static_cast<size_t>(row) * seq_len;
    if (auto bad = dataset->read(sequence_of(first_sample + row), &batch.inputs[at], &batch.targets[at]))
      batch.bad.push_back(std::move(*bad));
  }
  return batch;
}

void Loader::Impl::read_ahead(std::stop_token stop) {
  std::unique_lock lock(mutex);
  while (slot_freed.wait(lock, stop, [this] { return next_to_read < returned + options.prefetch; })) {
    const int64_t number = next_to_read++;
    lock.unlock();
    HostBatch batch;
    std::exception_ptr error;
    try {
      batch = read(number);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    slots[static_cast<size_t>(number % options.prefetch)] = {true, std::move(batch), error};
    slot_filled.notify_one();
    if (stop.stop_requested()) return;
  }
}

HostBatch Loader::Impl::take() {
  if (slots.empty()) {
    HostBatch batch = read(returned);
    ++returned;
    return batch;
  }
  std::unique_lock lock(mutex);
  Slot& slot = slots[static_cast<size_t>(returned % options.prefetch)];
  slot_filled.wait(lock, [&slot] { return slot.ready; });
  if (slot.error) std::rethrow_exception(slot.error); // the slot keeps the error: the next call throws it too
  HostBatch batch = std::exchange(slot, {}).batch;
  ++returned;
  lock.unlock();
  slot_freed.notify_one();
  return batch;
}

Loader::Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options, int64_t position) {
  if (options.batch_size < 1 || options.ranks < 1 || options.rank < 0 || options.rank >= options.ranks ||
      options.prefetch < 0 || (options.prefetch > 0 && options.threads < 1) || position < 0) {
    throw Error(ExitCode::usage,
                "the data loader needs batch_size, ranks and threads of at least 1, 0 <= rank < ranks, "
                "prefetch and position of at least 0");
  }
  impl_ = std::make_unique<Impl>(std::move(dataset), options, position);
}

Loader::~Loader() = default;

HostBatch Loader::next() { return impl_->take(); }

} // namespace gpt2
