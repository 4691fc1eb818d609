// The metrics.jsonl of a run, up to what bin/report and bin/watch make of it.
#include "tests/fuzz/fuzz_input.h"
#include "tools/report/page_data.h"
#include "tools/report/terminal_screen.h"

using namespace gpt2;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  fuzz::folder().write("metrics.jsonl", fuzz::text_of(bytes, size));
  fuzz::expect_answer([&] {
    std::vector<RunReader> runs;
    runs.emplace_back(fuzz::folder().path());
    page_data(runs);
    terminal_screen(runs[0], {.columns = 80});
  });
  return 0;
}
