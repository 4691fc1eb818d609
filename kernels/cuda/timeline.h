// Begin and end of the work of each stream, from CUDA events: shows overlap. Eager work only: graph nodes record no
// events.
#pragma once

#include <deque>
#include <string>

#include "kernels/cuda/memory.h"

namespace gpt2 {

class Timeline {
 public:
  // Records from construction to destruction, on a stream that the trace calls `track`. A null timeline records
  // nothing.
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

  // Waits for all recorded events, then writes a Chrome trace (chrome://tracing, ui.perfetto.dev).
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
