#include "engine/system/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

namespace gpt2 {

namespace {

namespace fs = std::filesystem;

std::string hint_for(int error_number, ExitCode code) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return "free some disk space, or choose another folder";
    case EACCES:
    case EPERM:
      return code == ExitCode::disk ? "choose a folder that you may write to" : "check who may read it (ls -l)";
    case EROFS:
      return "choose a folder on a disk that is not read-only";
    case ENOENT:
    case ENOTDIR:
      return "check the path for a typing error";
    case EISDIR:
      return "give the name of a file, not of a folder";
    case ENOMEM:
      return "free some of the host's memory";
    case EMFILE:
    case ENFILE:
      return "raise the limit of open files (ulimit -n)";
    case EIO:
      return "check the disk's health (dmesg), or copy the file to another disk";
    default: // a checkpoint error without a hint would mean damage
      return code == ExitCode::checkpoint ? "check the disk and its connection, and try again" : "";
  }
}

// A dataset of a thousand shards exceeds the usual soft limit of 1024 open files; the hard limit is far higher.
bool raise_open_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return false;
  limit.rlim_cur = limit.rlim_max;
  return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

// O_NONBLOCK: open(2) of a named pipe must not wait for a writer; the caller refuses the pipe.
OwnedDescriptor open_at_once(const std::string& path, int flags) {
  OwnedDescriptor opened = open_descriptor(path, flags | O_NONBLOCK);
  if (!opened.is_open() && errno == EMFILE && raise_open_file_limit())
    opened = open_descriptor(path, flags | O_NONBLOCK);
  return opened;
}

// Throws if a part of `path` is a dangling symbolic link, for which mkdir(2) only reports EEXIST.
void refuse_dangling_link(const fs::path& path) {
  fs::path part;
  for (const fs::path& name : path) {
    part /= name;
    std::error_code unreadable;
    if (!fs::is_symlink(part, unreadable) || fs::exists(part, unreadable)) continue;
    throw Error(ExitCode::disk,
                part.string() + " is a symbolic link to " + fs::read_symlink(part, unreadable).string() +
                    ", which does not exist",
                "create the folder that it points to, mount its disk, or choose another folder");
  }
}

std::string parent_folder(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

} // namespace

OwnedDescriptor open_descriptor(const std::string& path, int flags, mode_t mode) {
  return OwnedDescriptor(retry_on_eintr([&] { return ::open(path.c_str(), flags | O_CLOEXEC, mode); }));
}

bool try_lock(int descriptor, int kind) {
  return retry_on_eintr([&] { return ::flock(descriptor, kind | LOCK_NB); }) == 0 || errno != EWOULDBLOCK;
}

ssize_t read_all(int descriptor, std::span<std::byte> out, int64_t offset) {
  size_t filled = 0;
  while (filled < out.size()) {
    const auto rest = out.subspan(filled);
    const auto at = offset + static_cast<int64_t>(filled);
    const ssize_t got = retry_on_eintr([&] { return ::pread(descriptor, rest.data(), rest.size(), at); });
    if (got < 0) return -1;
    if (got == 0) break;
    filled += static_cast<size_t>(got);
  }
  return static_cast<ssize_t>(filled);
}

bool write_all(int descriptor, std::span<const std::byte> bytes, int64_t offset) {
  while (!bytes.empty()) {
    const ssize_t put = retry_on_eintr([&] {
      return offset < 0 ? ::write(descriptor, bytes.data(), bytes.size())
                        : ::pwrite(descriptor, bytes.data(), bytes.size(), offset);
    });
    if (put == 0) errno = EIO;
    if (put <= 0) return false;
    if (offset >= 0) offset += put;
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
  return true;
}

void throw_system_error(ExitCode code, std::string_view action, const std::string& path, int error_number) {
  if (error_number == ENOMEM || error_number == EMFILE || error_number == ENFILE)
    code = ExitCode::device; // a limit of the process: the file is not damaged
  throw Error(code, "cannot " + std::string(action) + " " + path + ": " + std::strerror(error_number),
              hint_for(error_number, code));
}

File File::open(const std::string& path, ExitCode on_error) {
  OwnedDescriptor opened = open_at_once(path, O_RDONLY);
  if (!opened.is_open()) throw_system_error(on_error, "open", path, errno);
  struct stat status {};
  if (::fstat(opened.descriptor(), &status) != 0) throw_system_error(on_error, "examine", path, errno);
  if (S_ISDIR(status.st_mode)) throw_system_error(on_error, "read", path, EISDIR);
  if (!S_ISREG(status.st_mode)) throw Error(on_error, "cannot read " + path + ": it is not a regular file");
  return File(path, std::move(opened), on_error);
}

File File::create_with(int flags, const std::string& path) {
  OwnedDescriptor opened = open_at_once(path, O_RDWR | O_CREAT | flags);
  if (!opened.is_open()) throw_system_error(ExitCode::disk, flags == 0 ? "open" : "create", path, errno);
  return File(path, std::move(opened), ExitCode::disk);
}

File File::create(const std::string& path) { return create_with(O_TRUNC, path); }

File File::update(const std::string& path) { return create_with(0, path); }

void File::resize(int64_t bytes) {
  if (retry_on_eintr([&] { return ::ftruncate(opened_.descriptor(), bytes); }) != 0)
    throw_system_error(ExitCode::disk, "write", path_, errno);
}

int64_t File::size() const {
  struct stat status {};
  if (::fstat(opened_.descriptor(), &status) != 0) throw_system_error(on_error_, "examine", path_, errno);
  return status.st_size;
}

void File::read_at(int64_t offset, std::span<std::byte> out) const {
  const ssize_t got = read_all(opened_.descriptor(), out, offset);
  if (got < 0) throw_system_error(on_error_, "read", path_, errno);
  const auto missing = static_cast<int64_t>(out.size()) - got;
  if (missing == 0) return;
  throw Error(on_error_,
              path_ + " ends at byte " + std::to_string(size()) + ", but " + std::to_string(missing) +
                  " bytes were expected at " + std::to_string(offset + got),
              "check whether the file was changed while in use, and create or copy it again");
}

void File::write_at(int64_t offset, std::span<const std::byte> bytes) {
  if (!write_all(opened_.descriptor(), bytes, offset)) throw_system_error(ExitCode::disk, "write", path_, errno);
}

void File::sync() {
  if (retry_on_eintr([&] { return ::fsync(opened_.descriptor()); }) != 0)
    throw_system_error(ExitCode::disk, "write", path_, errno);
}

PendingFile::PendingFile(std::string path, Links links)
    : path_(links == Links::follow ? resolve_links(path) : std::move(path)),
      temporary_(path_ + ".tmp-" + std::to_string(::getpid())) {
  std::error_code absent;
  const fs::file_status status = fs::status(path_, absent);
  if (fs::is_other(status)) // a rename would replace /dev/null by a file
    throw Error(ExitCode::disk, path_ + " is a device or a pipe, not a file", "name a file that may be replaced");
}

PendingFile::~PendingFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

File PendingFile::create() const {
  ::unlink(temporary_.c_str()); // from a killed process with the same id
  return File::create_with(O_EXCL | O_NOFOLLOW, temporary_);
}

void PendingFile::commit() {
  sync_path(temporary_);
  if (!renamed(temporary_, path_)) throw_system_error(ExitCode::disk, "replace", path_, errno);
  temporary_.clear();
  sync_path(parent_folder(path_)); // makes the rename durable
}

bool renamed(const std::string& from, const std::string& to) {
  return retry_on_eintr([&] { return std::rename(from.c_str(), to.c_str()); }) == 0;
}

std::string read_text_file(const std::string& path, ExitCode on_error, size_t most_bytes) {
  std::FILE* stream = std::fopen(path.c_str(), "rb"); // stdio: /dev/stdin and pipes are allowed here
  if (stream == nullptr) throw_system_error(on_error, "open", path, errno);
  std::string text;
  char block[65536];
  size_t got = 0;
  while (text.size() <= most_bytes && (got = std::fread(block, 1, sizeof block, stream)) > 0) text.append(block, got);
  const int error_number = std::ferror(stream) ? errno : 0;
  std::fclose(stream);
  if (error_number != 0) throw_system_error(on_error, "read", path, error_number);
  if (text.size() > most_bytes)
    throw Error(on_error, path + " has more than " + std::to_string(most_bytes) + " bytes",
                "check whether this is the file that you mean");
  return text;
}

void write_file_atomic(const std::string& path, std::string_view bytes, Links links) {
  PendingFile pending(path, links);
  pending.create().write_at(0, std::as_bytes(std::span(bytes)));
  pending.commit();
}

std::string resolve_links(const std::string& path) {
  constexpr int kMostLinks = 40; // as in the kernel
  fs::path end = path;
  std::error_code unreadable;
  for (int links = 0; fs::is_symlink(end, unreadable); ++links) {
    if (links == kMostLinks) throw_system_error(ExitCode::disk, "write", path, ELOOP);
    end = end.parent_path() / fs::read_symlink(end, unreadable); // an absolute target replaces the parent
  }
  return end.string();
}

void make_folders(const std::string& path) {
  refuse_dangling_link(path);
  std::error_code error;
  do fs::create_directories(path, error);
  while (error == std::errc::interrupted);
  std::error_code ignored;
  if (!error && !fs::is_directory(path, ignored)) error = std::make_error_code(std::errc::not_a_directory);
  if (error) throw_system_error(ExitCode::disk, "create folder", path, error.value());
}

std::vector<std::string> missing_folders(const std::string& path) {
  std::vector<std::string> missing;
  std::error_code unreadable;
  for (fs::path folder = path; !folder.empty() && !fs::exists(folder, unreadable); folder = folder.parent_path())
    missing.push_back(folder.string());
  return missing;
}

// Delegates: if make_folders() throws, the destructor runs, and removes what was made.
ScopedFolders::ScopedFolders(const std::string& path) : ScopedFolders(missing_folders(path)) { make_folders(path); }

ScopedFolders::~ScopedFolders() {
  for (const std::string& folder : made_) ::rmdir(folder.c_str()); // only empty ones
}

void sync_path(const std::string& path) {
  const OwnedDescriptor opened = open_at_once(path, O_RDONLY);
  if (!opened.is_open()) throw_system_error(ExitCode::disk, "open", path, errno);
  // Some network file systems cannot sync a folder and return EINVAL.
  if (retry_on_eintr([&] { return ::fsync(opened.descriptor()); }) != 0 && errno != EINVAL)
    throw_system_error(ExitCode::disk, "write", path, errno);
}

bool has_name(int descriptor, const std::string& path) {
  struct stat open_file {
  }, named_file{};
  if (::fstat(descriptor, &open_file) != 0 || ::stat(path.c_str(), &named_file) != 0) return false;
  return open_file.st_dev == named_file.st_dev && open_file.st_ino == named_file.st_ino;
}

std::string nearest_existing(const std::string& path) {
  std::error_code error;
  fs::path existing = fs::absolute(path, error);
  while (!fs::exists(existing, error) && existing.has_relative_path()) existing = existing.parent_path();
  return existing.string();
}

int64_t free_disk_space(const std::string& path) {
  std::error_code error;
  const std::string existing = nearest_existing(path);
  const fs::space_info space = fs::space(existing, error);
  if (error) throw_system_error(ExitCode::disk, "examine", existing, error.value());
  return static_cast<int64_t>(space.available);
}

namespace {

// `root` is the source tree, or a moved copy that only this user or root can have written.
bool is_our_tree(const fs::path& root) {
  std::error_code ignored;
  if (fs::equivalent(root, GPT2_SOURCE_FOLDER, ignored)) return true;
  struct stat status {};
  if (::stat(root.c_str(), &status) != 0 || !fs::exists(root / "CMakeLists.txt", ignored)) return false;
  return (status.st_uid == 0 || status.st_uid == ::geteuid()) && (status.st_mode & S_IWOTH) == 0;
}

} // namespace

std::string find_in_tree(const std::string& path) {
  std::error_code ignored;
  const fs::path beside = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  std::vector<fs::path> roots = {beside};
  for (const fs::path& preset : {beside, beside.parent_path()})
    if (const fs::path build = preset.parent_path(); build.filename() == "build" && is_our_tree(build.parent_path()))
      roots.push_back(build.parent_path());
  if (const fs::path package = beside.parent_path();
      beside.filename() == "bin" && fs::exists(package / "lib/libgpt2.so", ignored))
    roots.push_back(package);
  for (const fs::path& root : roots)
    if (fs::exists(root / path, ignored)) return (root / path).string();
  return "";
}

} // namespace gpt2
