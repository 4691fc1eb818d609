#include "tools/generate/writing.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/base/error.h"
#include "engine/base/formatted.h"
#include "engine/base/log.h"
#include "engine/base/utf8.h"
#include "engine/system/files.h"
#include "engine/system/process.h"
#include "engine/system/terminal.h"
#include "tools/generate/text_stream.h"

namespace gpt2 {
namespace {

// ---- prompts ----

std::string read_prompt_file(const std::string& path) {
  std::string text = read_text_file(path);
  if (text.empty()) throw Error(ExitCode::data, path + " is empty", "name a file with text in it");
  return text;
}

void drop_last_newline(std::string& text) {
  if (text.ends_with('\n')) text.pop_back();
}

int prompt_sources(const WritingCommand& command) {
  return !command.prompts.empty() + !command.prompt_file.empty() + !command.prompts_file.empty() +
         !command.standard_input.empty();
}

std::vector<std::string> read_prompts(const WritingCommand& command) {
  if (prompt_sources(command) > 1) {
    throw Error(ExitCode::usage, "prompts from more than one place",
                "give one of --prompt, --prompt_file, --prompts_file and -");
  }
  if (!command.standard_input.empty() && command.standard_input != "-") {
    throw Error(ExitCode::usage, "unexpected argument \"" + command.standard_input + "\"",
                "use --prompt TEXT, or - for standard input");
  }
  if (!command.prompts.empty()) return command.prompts;
  std::vector<std::string> prompts;
  if (!command.prompts_file.empty()) {
    std::istringstream lines(read_prompt_file(command.prompts_file));
    for (std::string line; std::getline(lines, line);) {
      if (line.ends_with('\r')) line.pop_back();
      if (!line.empty()) prompts.push_back(line);
    }
    if (prompts.empty()) throw Error(ExitCode::data, command.prompts_file + " has no line with text");
    return prompts;
  }
  if (!command.prompt_file.empty())
    prompts.push_back(read_prompt_file(command.prompt_file));
  else if (!command.standard_input.empty())
    prompts.push_back(read_text_file("/dev/stdin"));
  else
    prompts.emplace_back(); // unconditional text
  drop_last_newline(prompts.back());
  return prompts;
}

// ---- texts ----

struct Request {
  std::string prompt;
  std::vector<uint16_t> tokens;
  int sample; // from 1
};

std::vector<Request> make_requests(const WritingCommand& command, const std::vector<std::string>& prompts,
                                   const Tokenizer& tokenizer, int positions) {
  std::vector<Request> requests;
  int number = 0;
  for (const std::string& prompt : prompts) {
    number += 1;
    const std::vector<uint16_t> tokens = tokenizer.encode(prompt);
    if (command.no_bos && tokens.empty())
      throw Error(ExitCode::usage, "--no_bos needs a prompt: without <|endoftext|> the model has no input",
                  "give --prompt TEXT, or leave --no_bos out");
    const int most = positions - (command.no_bos ? 0 : 1);
    if (tokens.size() > static_cast<size_t>(most)) {
      throw Error(ExitCode::usage,
                  "prompt " + std::to_string(number) + " has " + std::to_string(tokens.size()) +
                      " tokens; the model reads at most " + std::to_string(most),
                  "shorten it");
    }
    for (int sample = 1; sample <= command.samples; ++sample) requests.push_back({prompt, tokens, sample});
  }
  return requests;
}

void show(const std::string& text) { std::cout << text << std::flush; }

class Writer {
 public:
  Writer(const WritingCommand& command, const Tokenizer& tokenizer, Model& model, const StopSignal& signal)
      : command_(command), tokenizer_(tokenizer), model_(model), signal_(signal) {}

  void write(const std::vector<Request>& requests) {
    const auto at_once = static_cast<size_t>(command_.rows);
    for (size_t first = 0; first < requests.size() && !is_over(); first += at_once)
      write_batch(std::span(requests).subspan(first, std::min(at_once, requests.size() - first)), first,
                  requests.size());
    written_ += requests.size();
    if (not_finite_) {
      report();
      throw Error(ExitCode::numerics, "the model's logits are not finite", "use an earlier checkpoint");
    }
  }

  // Call last.
  ExitCode finish() const {
    report();
    return signal_.requested() ? ExitCode::stopped_early : ExitCode::done;
  }

  // Reads prompts from the terminal, one per line.
  void converse() {
    std::cerr << "Type a prompt and press Enter; Ctrl-D ends.\n";
    for (std::string line; !is_over();) {
      signal_.answer_at_once(); // waiting for a line has nothing to finish
      show("> ");
      if (!std::getline(std::cin, line)) return show("\n");
      try {
        write(make_requests(command_, {line}, tokenizer_, model_.config().seq_len));
      } catch (const Error& error) {
        if (error.code() != ExitCode::usage) throw;
        print_error(error);
      }
    }
  }

 private:
  void write_batch(std::span<const Request> requests, size_t first, size_t of) {
    size_t longest = 0;
    std::vector<Prompt> prompts;
    std::vector<TextStream> streams(requests.size(), TextStream(command_.stop_strings));
    std::vector<std::string> texts(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      prompts.push_back({requests[i].tokens, written_ + first + i});
      longest = std::max(longest, requests[i].tokens.size());
    }
    const size_t positions = std::min<size_t>(1 + longest + static_cast<size_t>(command_.settings.tokens),
                                              static_cast<size_t>(model_.config().seq_len));
    const auto decoder = model_.make_decoder(static_cast<int>(requests.size()), static_cast<int>(positions));

    const bool streaming = of == 1 && !command_.json;
    if (streaming) show(to_valid_utf8(requests[0].prompt));
    Listeners listeners;
    signal_.answer_at_once(); // the prefill of a long prompt is one uninterruptible call
    listeners.token = [&](size_t text, uint16_t token) {
      signal_.defer();
      const std::string shown = streams[text].add(tokenizer_.decode({token}));
      if (streaming) show(shown);
      texts[text] += shown;
      return !streams[text].stopped();
    };
    listeners.interrupted = [this] { return is_over(); };
    const Generation generation = generate(*decoder, prompts, command_.settings, listeners);
    for (size_t i = 0; i < requests.size(); ++i) {
      const std::string rest = streams[i].finish();
      const WrittenText& written = generation.texts[i];
      if (streaming)
        show(rest + "\n");
      else if (command_.json)
        show_json(requests[i], texts[i] + rest, written);
      else
        show_whole(requests[i], texts[i] + rest, first + i + 1, of);
    }
    add_up(generation);
  }

  bool is_over() const { return signal_.requested() || !std::cout; } // the reader has closed standard output

  static void show_whole(const Request& request, const std::string& text, size_t number, size_t of) {
    show("--- " + std::to_string(number) + " of " + std::to_string(of) + "\n" + to_valid_utf8(request.prompt) + text +
         "\n");
  }

  void show_json(const Request& request, const std::string& text, const WrittenText& written) const {
    const nlohmann::ordered_json object{{"prompt", to_valid_utf8(request.prompt)},
                                        {"sample", request.sample},
                                        {"text", text},
                                        {"ending", name_of(written.ending)},
                                        {"tokens", written.tokens}};
    show(object.dump() + "\n");
  }

  void add_up(const Generation& generation) {
    total_.prompt_tokens += generation.prompt_tokens;
    total_.decoded_tokens += generation.decoded_tokens;
    total_.prefill_seconds += generation.prefill_seconds;
    total_.decode_seconds += generation.decode_seconds;
    for (const WrittenText& text : generation.texts) {
      slid_ = slid_ || text.slides > 0;
      out_of_positions_ = out_of_positions_ || text.ending == Ending::no_positions;
      not_finite_ = not_finite_ || text.ending == Ending::not_finite;
    }
  }

  void report() const {
    const std::string positions = std::to_string(model_.config().seq_len);
    if (slid_) {
      std::cerr << "the model has " << positions << " positions: longer texts continued from their last "
                << model_.config().seq_len / 2 << " tokens\n";
    }
    if (out_of_positions_) std::cerr << "the model has " << positions << " positions: longer texts ended there\n";
    std::cerr << "prefill " << speed(total_.prompt_tokens, total_.prefill_seconds) << ", decode "
              << speed(total_.decoded_tokens, total_.decode_seconds) << "\n";
  }

  static std::string speed(int64_t tokens, double seconds) {
    return counted(tokens, "token") + " in " + format_duration(seconds) + " (" +
           format_count(static_cast<double>(tokens) / std::max(seconds, 1e-9)) + "/s)";
  }

  const WritingCommand& command_;
  const Tokenizer& tokenizer_;
  Model& model_;
  const StopSignal& signal_;
  Generation total_;
  size_t written_ = 0; // texts of earlier prompts: equal prompts get different texts
  bool slid_ = false, out_of_positions_ = false, not_finite_ = false;
};

} // namespace

ExitCode write_texts(WritingCommand command) {
  const StopSignal signal;
  if (std::ranges::any_of(command.stop_strings, &std::string::empty))
    throw Error(ExitCode::usage, "--stop is empty", "name the text to stop at");
  command.settings.slide = !command.no_slide;
  command.settings.bos = !command.no_bos;
  const InferenceOptions options = inference_options(command.model);
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(command.model.tokenizer);
  const std::unique_ptr<WeightSource> weights = open_weights(options.source, options.hf_cache);
  const bool interactive =
      prompt_sources(command) == 0 && !command.json && is_terminal() && ::isatty(STDIN_FILENO) == 1;
  std::vector<Request> requests; // refused before the weights are read
  if (!interactive) requests = make_requests(command, read_prompts(command), *tokenizer, weights->config().seq_len);
  const InferenceModel inference = open_inference_model(options, *weights);
  for (const std::string& note : inference.notes) log_warn(note);
  std::cerr << inference.description << "\n";
  Writer writer(command, *tokenizer, *inference.model, signal);
  if (interactive)
    writer.converse();
  else
    writer.write(requests);
  return writer.finish();
}

} // namespace gpt2
