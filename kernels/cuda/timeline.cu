#include "kernels/cuda/timeline.h"

#include <utility>

#include "engine/base/formatted.h"
#include "engine/system/files.h"

namespace gpt2 {

Timeline::Span::Span(Timeline* timeline, cudaStream_t stream, const char* track, std::string name)
    : timeline_(timeline), stream_(stream) {
  if (!timeline_) return;
  index_ = timeline_->entries_.size();
  Entry& entry = timeline_->entries_.emplace_back();
  entry.track = track;
  entry.name = std::move(name);
  entry.begin.record(stream_);
}

Timeline::Span::~Span() {
  if (timeline_) timeline_->entries_[index_].end.record(stream_);
}

void Timeline::write(const std::string& path) const {
  CUDA_CHECK(cudaDeviceSynchronize());
  std::string json = "[\n";
  for (const Entry& entry : entries_) {
    json += formatted("{\"name\": \"%s\", \"ph\": \"X\", \"pid\": 0, \"tid\": \"%s\", \"ts\": %.1f, \"dur\": %.1f}%s\n",
                      entry.name.c_str(), entry.track, 1e6 * entry.begin.seconds_since(entries_.front().begin),
                      1e6 * entry.end.seconds_since(entry.begin), &entry == &entries_.back() ? "" : ",");
  }
  write_file_atomic(path, json + "]\n");
}

} // namespace gpt2
