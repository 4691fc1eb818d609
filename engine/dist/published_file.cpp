#include "engine/dist/published_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "engine/base/error.h"

namespace gpt2 {
namespace {

constexpr const char* kTokenHint = "export GPT2_JOB_TOKEN=$(openssl rand -hex 32), the same for all ranks, instead";

[[noreturn]] void refuse_other_file(const std::string& path) {
  throw Error(ExitCode::usage, path + " exists, and is not a file by which ranks meet: it is left as it is",
              "give --master file:PATH the name of a file that does not exist, or remove this one");
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// On NFS a name that was missing a moment ago may stay so for half a minute, unless its folder is opened again.
void refresh_folder(const std::string& folder) {
  if (DIR* const opened = ::opendir(folder.c_str())) ::closedir(opened);
}

// A regular file's first bytes; nothing: there is no such file.
std::optional<std::string> first_bytes(const std::string& path, struct stat& status) {
  const int descriptor =
      uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); });
  if (descriptor < 0 && (errno == ENOENT || errno == ESTALE)) return std::nullopt;
  if (descriptor < 0 && errno == ELOOP) refuse_other_file(path); // a symbolic link
  if (descriptor < 0) throw_system_error(ExitCode::usage, "read", path, errno);
  std::string bytes(kPublicationBytes + 1, '\0');
  const bool is_file = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  const ssize_t got = is_file ? uninterrupted([&] { return ::read(descriptor, bytes.data(), bytes.size()); }) : 0;
  const int error_number = errno;
  ::close(descriptor);
  if (!is_file) refuse_other_file(path);
  if (got < 0 && error_number == ESTALE) return std::nullopt; // NFS: removed meanwhile
  if (got < 0) throw_system_error(ExitCode::usage, "read", path, error_number);
  bytes.resize(static_cast<size_t>(got));
  return bytes;
}

bool is_private(const struct stat& status) { return status.st_uid == ::geteuid() && (status.st_mode & 077) == 0; }

} // namespace

void PublishedFile::write(const Publication& publication) {
  const std::string text = to_text(publication);
  struct stat status {};
  if (const auto there = first_bytes(path_, status)) {
    if (!is_publication(*there)) refuse_other_file(path_);
    if (::unlink(path_.c_str()) != 0) throw_system_error(ExitCode::disk, "replace", path_, errno);
  }
  descriptor_ = uninterrupted([&] { return ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600); });
  if (descriptor_ < 0 && errno == EEXIST) refuse_other_file(path_);
  if (descriptor_ < 0) throw_system_error(ExitCode::disk, "create", path_, errno);
  if (::fstat(descriptor_, &status) != 0 || (!publication.key.empty() && !is_private(status))) {
    throw Error(ExitCode::usage, path_ + " is on a disk that does not keep who may read a file", kTokenHint);
  }
  const auto put = uninterrupted([&] { return ::write(descriptor_, text.data(), text.size()); });
  if (put != static_cast<ssize_t>(text.size()) || uninterrupted([&] { return ::fsync(descriptor_); }) != 0) {
    throw_system_error(ExitCode::disk, "write", path_, put < 0 ? errno : ENOSPC);
  }
}

void PublishedFile::make_folder() { folders_.emplace(folder_of(path_)); }

void PublishedFile::remove() {
  if (descriptor_ >= 0) {
    if (has_name(descriptor_, path_)) ::unlink(path_.c_str());
    ::close(std::exchange(descriptor_, -1));
  }
  folders_.reset();
}

std::optional<Publication> PublishedFile::read() const {
  struct stat status {};
  refresh_folder(folder_of(path_));
  const auto text = first_bytes(path_, status);
  if (text && !may_become_publication(*text)) refuse_other_file(path_);
  auto publication = text ? read_publication(*text) : std::nullopt;
  if (publication && !publication->key.empty() && !is_private(status)) {
    throw Error(ExitCode::usage, path_ + " was written by another user, or others may read it",
                "remove it if it is yours; or " + std::string(kTokenHint));
  }
  return publication;
}

std::string runtime_folder(const std::string& root) {
  const std::string folder = root + "/gpt2-ranks-" + std::to_string(::geteuid());
  struct stat status {};
  const bool made = ::mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST;
  if (!made) throw_system_error(ExitCode::communication, "create folder", folder, errno);
  if (::lstat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || !is_private(status)) {
    throw Error(ExitCode::communication, folder + " is not a folder of this user alone",
                "remove it; or " + std::string(kTokenHint));
  }
  return folder;
}

} // namespace gpt2
