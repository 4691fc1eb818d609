// When the work of each stream began and ended, from events: what runs beside what. Eager work only, since a graph's
// nodes have no events of their own.
#pragma once

#include <deque>
#include <string>

#include "kernels/cuda/memory.h"

namespace gpt2 {

class Timeline {
 public:
  // From now until the end of the scope, on a stream that the trace calls `track`. Null: nothing is recorded.
  class Span {
   public:
    Span(Timeline* timeline, cudaStream_t stream, const char* track, std::string name);
    ~Span();
    Span(const Span&) = delete;

   private:
    Timeline* const timeline_;
    const cudaStream_t stream_;
    size_t index_ = 0;
  };

  // Waits for all that was recorded, then writes it as a Chrome trace (chrome://tracing, ui.perfetto.dev).
  void write(const std::string& path) const;

 private:
  struct Entry {
    const char* track;
    std::string name;
    Event begin{Event::Kind::timed}, end{Event::Kind::timed};
  };
  std::deque<Entry> entries_;
};

} // namespace gpt2
