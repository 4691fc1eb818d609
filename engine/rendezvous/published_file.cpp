#include "engine/rendezvous/published_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "engine/base/error.h"
#include "engine/rendezvous/job_token.h"

namespace gpt2 {
namespace {

constexpr std::string_view kTitle = "gpt2_ranks ", kVersionedTitle = "gpt2_ranks 2\n";
const std::string kTokenInstead = std::string(kTokenHint) + ", instead";

[[noreturn]] void refuse_other_file(const std::string& path) {
  throw Error(ExitCode::usage, path + " exists and was not written by rank 0 of a job; it is not changed",
              "give --master file:PATH the name of a file that does not exist, or remove this one");
}

[[noreturn]] void refuse_other_job(const std::string& path) {
  throw Error(ExitCode::communication, path + ": the rank 0 of another job waits here for its ranks",
              "give this job another --master, or end the other job");
}

std::string folder_of(const std::string& path) { return std::filesystem::absolute(path).parent_path().string(); }

// NFS caches a missing name for up to 30 s, unless its folder is opened again.
void refresh_folder(const std::string& folder) {
  if (DIR* const opened = ::opendir(folder.c_str())) ::closedir(opened);
}

struct FoundFile {
  OwnedDescriptor opened;
  struct stat status {};
  std::string first_bytes = {};
};

// A regular file; nullopt: not found.
std::optional<FoundFile> find_file(const std::string& path, int access) {
  FoundFile file{open_descriptor(path, access | O_NOFOLLOW | O_NONBLOCK)};
  const int descriptor = file.opened.descriptor();
  if (descriptor < 0 && (errno == ENOENT || errno == ESTALE)) return std::nullopt;
  if (descriptor < 0 && (errno == ELOOP || errno == EISDIR)) refuse_other_file(path); // a symbolic link, a folder
  if (descriptor < 0) throw_system_error(ExitCode::usage, "open", path, errno);
  if (::fstat(descriptor, &file.status) != 0 || !S_ISREG(file.status.st_mode)) refuse_other_file(path);
  std::string& bytes = file.first_bytes;
  bytes.resize(kPublicationBytes + 1);
  const ssize_t got = read_all(descriptor, std::as_writable_bytes(std::span(bytes)), 0);
  if (got < 0 && errno == ESTALE) return std::nullopt; // NFS: removed since open()
  if (got < 0) throw_system_error(ExitCode::usage, "read", path, errno);
  bytes.resize(static_cast<size_t>(got));
  return file;
}

bool is_private(const struct stat& status) { return status.st_uid == ::geteuid() && (status.st_mode & 077) == 0; }

// Removes the file of an earlier rank 0: complete, or truncated and private.
void remove_stale(const std::string& path) {
  const auto file = find_file(path, O_RDWR); // NFS locks only files open for writing
  if (!file) return;
  const std::string& text = file->first_bytes;
  const bool is_torn = is_publication(text) && text.size() <= kPublicationBytes && is_private(file->status);
  if (!read_publication(text) && !is_torn) refuse_other_file(path);
  const int descriptor = file->opened.descriptor();
  if (!try_lock(descriptor, LOCK_EX) || !has_name(descriptor, path))
    refuse_other_job(path); // waits, or has just replaced the file
  if (::unlink(path.c_str()) != 0) throw_system_error(ExitCode::disk, "replace", path, errno);
}

} // namespace

std::string to_text(const Publication& publication) {
  std::string text(kVersionedTitle);
  if (publication.key) text += "key " + to_hex(*publication.key) + "\n";
  text += "port " + std::to_string(publication.port) + "\n";
  for (const std::string& address : publication.addresses) text += "address " + address + "\n";
  return text + "end\n";
}

std::optional<Publication> read_publication(std::string_view text) {
  if (!text.starts_with(kVersionedTitle) || !text.ends_with("\nend\n") || text.size() > kPublicationBytes)
    return std::nullopt;
  text.remove_prefix(kVersionedTitle.size());
  text.remove_suffix(std::string_view("end\n").size());
  Publication publication;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n')), name = line.substr(0, line.find(' '));
    const std::string_view value = line.substr(std::min(line.size(), name.size() + 1));
    text.remove_prefix(line.size() + 1);
    if (const auto key = name == "key" ? key_of_hex(value) : std::nullopt) {
      publication.key = key;
    } else if (const auto port = name == "port" ? read_port(value) : std::nullopt) {
      publication.port = *port;
    } else if (name == "address" && !value.empty()) {
      publication.addresses.emplace_back(value);
    } else {
      return std::nullopt;
    }
  }
  const bool whole = publication.port > 0 && !publication.addresses.empty();
  return whole ? std::optional(publication) : std::nullopt;
}

bool is_publication(std::string_view text) { return text.starts_with(kTitle); }

bool may_become_publication(std::string_view text) { return is_publication(text) || kTitle.starts_with(text); }

void PublishedFile::write(const Publication& publication) {
  const std::string text = to_text(publication);
  struct stat status {};
  if (makes_folder_) folders_.emplace(folder_of(path_));
  remove_stale(path_);
  made_ = open_descriptor(path_, O_WRONLY | O_CREAT | O_EXCL, 0600);
  const int descriptor = made_.descriptor();
  if (descriptor < 0 && errno == EEXIST) refuse_other_job(path_);
  if (descriptor < 0) throw_system_error(ExitCode::disk, "create", path_, errno);
  try_lock(descriptor, LOCK_EX); // until remove(), or the end of this process
  if (::fstat(descriptor, &status) != 0 || (publication.key && !is_private(status))) {
    throw Error(ExitCode::usage, path_ + " is on a file system without permissions", kTokenInstead);
  }
  if (!write_all(descriptor, std::as_bytes(std::span(text))) ||
      retry_on_eintr([&] { return ::fsync(descriptor); }) != 0)
    throw_system_error(ExitCode::disk, "write", path_, errno);
}

void PublishedFile::remove() {
  if (made_.is_open() && has_name(made_.descriptor(), path_)) ::unlink(path_.c_str());
  made_.close();
  folders_.reset();
}

std::optional<Publication> PublishedFile::read() const {
  refresh_folder(folder_of(path_));
  const auto file = find_file(path_, O_RDONLY);
  if (file && !may_become_publication(file->first_bytes)) refuse_other_file(path_);
  auto publication = file ? read_publication(file->first_bytes) : std::nullopt;
  if (publication && publication->key && !is_private(file->status)) {
    throw Error(ExitCode::usage, path_ + " was written by another user, or other users can read it",
                "remove it if it is yours; or " + kTokenInstead);
  }
  return publication;
}

std::string runtime_folder(const std::string& root) {
  const std::string folder = root + "/gpt2-ranks-" + std::to_string(::geteuid());
  struct stat status {};
  const bool made = ::mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST;
  if (!made) throw_system_error(ExitCode::communication, "create folder", folder, errno);
  if (::lstat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || !is_private(status)) {
    throw Error(ExitCode::communication, folder + " is not a private folder of this user",
                "remove it; or " + kTokenInstead);
  }
  return folder;
}

} // namespace gpt2
