// Generates text: generate MODEL --prompt TEXT.
#include "tools/generate/writing.h"

namespace {

using namespace gpt2;

void add_options(CLI::App& app, WritingCommand& command) {
  GenerationSettings& settings = command.settings;
  SamplingSettings& sampling = settings.sampling;
  add_inference_arguments(app, command.model);
  app.option_defaults()->group("Prompt");
  app.add_option("input", command.standard_input, "-: read the prompt from standard input");
  app.add_option("--prompt", command.prompts, "start of the text; several: a batch")->allow_extra_args(false);
  app.add_option("--prompt_file", command.prompt_file, "file with the prompt; its last newline is dropped")
      ->type_name("FILE");
  app.add_option("--prompts_file", command.prompts_file, "file with one prompt per line")->type_name("FILE");
  app.add_flag("--no_bos", command.no_bos, "do not put <|endoftext|> before the prompt");
  app.option_defaults()->group("Sampling");
  app.add_option("-n,--samples", command.samples, "texts per prompt")->check(number_in(1, 1 << 20));
  app.add_option("--tokens", settings.tokens, "tokens to generate after the prompt")->check(number_in(1, 1 << 24));
  app.add_option("--temperature", sampling.temperature, "0: greedy")->check(number_in(0.0, 1e6));
  app.add_option("--top_k", sampling.top_k, "sample from the k likeliest tokens; 0: all")->check(number_from(0));
  app.add_option("--top_p", sampling.top_p, "sample from the fewest tokens with this total probability")
      ->check(number_in(0.0, 1.0));
  app.add_option("--min_p", sampling.min_p, "drop tokens less likely than this times the likeliest")
      ->check(number_in(0.0, 1.0));
  app.add_option("--repetition_penalty", sampling.repetition_penalty,
                 "above 1: makes tokens already in the text less likely")
      ->check(number_in(0.01, 100.0));
  app.add_option("--seed", settings.seed, "equal seeds give equal texts");
  app.add_option("--stop", command.stop_strings, "string that ends the text, not printed; several: any of them")
      ->allow_extra_args(false);
  app.add_flag("--no_slide", command.no_slide,
               "end at the model's last position; default: continue from the last half of the context");
  app.option_defaults()->group("Output");
  app.add_flag("--json", command.json, "one JSON object per text");
  app.add_option("--batch_size", command.rows, "texts per batch")->check(number_in(1, 1 << 16));
}

} // namespace

int main(int argc, char** argv) {
  return gpt2::run_tool<WritingCommand>(
      argc, argv,
      "Generates text token by token. The model reads <|endoftext|> before the prompt, as before each document in "
      "training; --no_bos leaves it out, as transformers does. Without a prompt on a terminal, it reads one per line "
      "until Ctrl-D.",
      "generate", add_options, write_texts);
}
