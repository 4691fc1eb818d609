// One self-contained HTML page of one or several runs, finished or training (docs/tools.md).
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <thread>

#include "engine/base/error.h"
#include "engine/base/formatted.h"
#include "engine/base/log.h"
#include "engine/base/stopwatch.h"
#include "engine/network/sockets.h"
#include "engine/system/process.h"
#include "tools/common/output_kinds.h"
#include "tools/common/tool_arguments.h"
#include "tools/report/page.h"
#include "tools/report/page_data.h"
#include "tools/report/page_server.h"
#include "tools/report/run_state.h"

namespace {

using namespace gpt2;
namespace fs = std::filesystem;

constexpr int kDefaultPort = 6007; // TensorBoard uses 6006
constexpr double kFetchSeconds = 5;

struct Command {
  std::vector<std::string> runs;
  std::string output, log_dir = "runs", port; // port "": the default, or a free one
  double watch = 0;                           // seconds; 0: once
  bool serves = false, overwrite = false;
};

void add_options(CLI::App& app, Command& command) {
  app.footer("One run: RUN/report.html. Several runs in one page: report.html next to the first.");
  app.add_option("run", command.runs, "folders of runs, names in --log_dir, or latest; default: the newest run");
  app.add_option("-o,--output", command.output, "the file to write")->type_name("FILE");
  add_overwrite(app, command.overwrite);
  add_log_dir(app, command.log_dir);
  app.add_option("--watch", command.watch, "rewrite the page at this interval until the runs end")
      ->check(number_in(0.1, 86400.0))
      ->type_name("SECONDS");
  const auto take_serve = [&command](const std::string& word) { // `--serve RUN`: a word that is not a number is a run
    command.serves = true;
    const bool is_port = std::ranges::all_of(word, [](unsigned char c) { return std::isdigit(c); });
    if (is_port)
      command.port = word;
    else
      command.runs.push_back(word);
  };
  app.add_option_function<std::string>(
         "--serve", take_serve,
         "serve a live page at http://127.0.0.1:PORT/ instead of writing a file; default: 6007, or a free port")
      ->expected(0, 1)
      ->type_name("PORT");
}

std::vector<RunReader> open_runs(const Command& command) {
  std::vector<RunReader> runs;
  if (command.runs.empty()) runs.emplace_back(find_run(kLatestRun, command.log_dir));
  for (const std::string& run : command.runs) runs.emplace_back(find_run(run, command.log_dir));
  return runs;
}

std::string title_of(const std::vector<RunReader>& runs) {
  std::vector<std::string> names;
  for (const RunReader& run : runs) names.push_back(run.name());
  return listed(names);
}

std::string default_output(const std::vector<RunReader>& runs) {
  if (runs.size() == 1) return (fs::path(runs[0].folder()) / "report.html").string();
  return (fs::weakly_canonical(runs[0].folder()).parent_path() / "report.html")
      .lexically_proximate(fs::current_path())
      .string();
}

bool any_is_running(const std::vector<RunReader>& runs) {
  return std::any_of(runs.begin(), runs.end(), [](const RunReader& run) { return state_of(run) == "running"; });
}

bool read_all(std::vector<RunReader>& runs) {
  bool more = false;
  for (RunReader& run : runs) more = run.read() || more;
  return more;
}

// ---- as a file ----

ExitCode write(const Command& command) {
  std::vector<RunReader> runs = open_runs(command);
  const std::string path = command.output.empty() ? default_output(runs) : command.output;
  refuse_foreign_file(path, kPageOutput, command.overwrite);
  const StopSignal stop;
  if (command.watch > 0) stop.defer();
  while (command.watch > 0 && any_is_running(runs) && !stop.requested()) {
    log_info(write_page(path, page_data(runs), title_of(runs), Refresh::reload, command.watch));
    for (const Stopwatch pause; pause.seconds() < command.watch && !stop.requested();)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    read_all(runs);
  }
  log_info(write_page(path, page_data(runs), title_of(runs)));
  return ExitCode::done;
}

// ---- as a server ----

Socket listen_for_browsers(const Command& command) {
  const int port = command.port.empty() ? kDefaultPort : std::atoi(command.port.c_str());
  if (command.port.size() > 5 || port > 65535)
    throw Error(ExitCode::usage, "--serve " + command.port + ": not a port", "0 to 65535; 0: any free port");
  Socket listener = listen_at(port, Reach::this_host);
  if (!listener.is_open() && command.port.empty()) listener = listen_at(0, Reach::this_host);
  if (!listener.is_open())
    throw Error(ExitCode::communication, "port " + std::to_string(port) + " is in use",
                "choose another port, or give --serve without one");
  return listener;
}

ExitCode serve(const Command& command) {
  if (!command.output.empty() || command.watch > 0)
    throw Error(ExitCode::usage, "--serve writes no file", "remove --output and --watch");
  std::vector<RunReader> runs = open_runs(command);
  const Socket listener = listen_for_browsers(command);
  const StopSignal stop;
  stop.defer();
  log_info("http://127.0.0.1:" + std::to_string(local_port(listener)) + "/ (Ctrl-C to stop)");

  int64_t version = 1;
  bool was_running = any_is_running(runs);
  const auto update = [&] { // increments `version` if the data changed
    const bool more = read_all(runs), running = any_is_running(runs);
    version += more || running != was_running ? 1 : 0;
    was_running = running;
  };
  const auto answer = [&](const std::string& target) -> HttpAnswer {
    const std::string path = target.substr(0, target.find('?'));
    if (path != "/" && path != "/data.json") return {404, "text/plain", "not found: only / exists\n"};
    try {
      update();
    } catch (const Error& error) {
      return {503, "text/plain", std::string(error.what()) + "\n"};
    }
    if (target == "/data.json?have=" + std::to_string(version)) return {204, "", ""};
    nlohmann::json data = page_data(runs);
    data["version"] = version;
    if (path == "/") return {200, "text/html", page_html(data, title_of(runs), Refresh::fetch, kFetchSeconds)};
    return {200, "application/json", json_text(data)};
  };
  serve_http(listener, answer, [&] { return stop.requested(); });
  return ExitCode::done;
}

ExitCode report(const Command& command) { return command.serves ? serve(command) : write(command); }

} // namespace

int main(int argc, char** argv) {
  return gpt2::run_tool<Command>(argc, argv, "Writes one self-contained HTML page about one or several runs.", "report",
                                 add_options, report);
}
