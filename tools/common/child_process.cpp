#include "tools/common/child_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string_view>
#include <utility>

#include "engine/system/files.h"

extern char** environ; // NOLINT(readability-redundant-declaration): only glibc declares it too

namespace gpt2 {
namespace {

int wait_for(int process) {
  int status = 0;
  while (::waitpid(process, &status, 0) < 0 && errno == EINTR) continue;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

bool read_line(std::FILE* file, std::string& line) {
  line.clear();
  int c = std::fgetc(file);
  for (; c != EOF && c != '\n'; c = std::fgetc(file)) line += static_cast<char>(c);
  return c != EOF || !line.empty();
}

std::string last_line(std::FILE* file) {
  std::rewind(file);
  std::string last;
  for (std::string line; read_line(file, line);)
    if (!line.empty()) last = line;
  return last;
}

} // namespace

std::string find_script(const std::string& name, const std::string& what_it_does) {
  if (const std::string found = find_in_tree(name); !found.empty()) return found;
  throw Error(ExitCode::data, name + ", which " + what_it_does + ", was not found",
              "run this program in its source tree, or copy " + name + " next to its folder");
}

std::string without_error_prefix(const std::string& line) {
  constexpr std::string_view kPrefix = "error: ";
  return line.starts_with(kPrefix) ? line.substr(kPrefix.size()) : line;
}

ChildProcess::ChildProcess(const std::vector<std::string>& arguments, Signals signals) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_system_error(ExitCode::data, "run", arguments[0], errno);
  output_ = ::fdopen(ends[0], "rb");
  errors_ = std::tmpfile();
  if (!errors_) {
    const int failure = errno;
    std::fclose(output_);
    ::close(ends[1]);
    throw_system_error(ExitCode::disk, "make", "a temporary file", failure);
  }

  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, ::fileno(errors_), STDERR_FILENO);
  posix_spawnattr_t attributes; // our programs ignore SIGPIPE; the child must not
  sigset_t pipe_signal;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setsigdefault(&attributes, &pipe_signal);
  const int own_group = signals == Signals::shielded ? POSIX_SPAWN_SETPGROUP : 0; // the default group id 0: a new group
  posix_spawnattr_setflags(&attributes, static_cast<short>(POSIX_SPAWN_SETSIGDEF | own_group));

  std::vector<char*> words;
  for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  const int failure = ::posix_spawnp(&process_, words[0], &files, &attributes, words.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  ::close(ends[1]);
  if (failure == 0) return;
  std::fclose(output_);
  std::fclose(errors_);
  throw_system_error(ExitCode::data, "run", arguments[0], failure);
}

ChildProcess::~ChildProcess() {
  std::fclose(output_);
  if (process_ > 0) wait_for(process_);
  std::fclose(errors_);
}

bool ChildProcess::next_line(std::string& line) { return read_line(output_, line); }

void ChildProcess::send(int signal) const {
  if (process_ > 0) ::kill(process_, signal);
}

ChildProcess::Ending ChildProcess::wait() {
  const int status = wait_for(std::exchange(process_, -1));
  return {status, last_line(errors_)};
}

} // namespace gpt2
