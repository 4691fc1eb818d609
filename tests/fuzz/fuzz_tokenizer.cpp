// The BPE tables. An input is encoder.json and vocab.bpe with a zero byte between them.
#include "engine/text/tokenizer.h"
#include "tests/fuzz/fuzz_input.h"

using namespace gpt2;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::string_view input = fuzz::text_of(bytes, size);
  const size_t cut = input.find('\0');
  fuzz::folder().write("encoder.json", input.substr(0, cut));
  fuzz::folder().write("vocab.bpe", cut == std::string_view::npos ? "" : input.substr(cut + 1));
  fuzz::expect_answer([&] { Tokenizer tables(fuzz::folder().path()); });
  return 0;
}
