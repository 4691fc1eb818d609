// A file by which rank 0 publishes its address and the secret: made new, readable by its user alone, removed once all
// ranks have joined. A file of somebody else is never replaced and never removed.
#pragma once

#include <optional>
#include <string>

#include "engine/rendezvous/messages.h"
#include "engine/system/files.h"

namespace gpt2 {

class PublishedFile {
 public:
  explicit PublishedFile(std::string path) : path_(std::move(path)) {}
  ~PublishedFile() { remove(); }
  PublishedFile(const PublishedFile&) = delete;

  const std::string& path() const { return path_; }

  // Rank 0. Locks the file while it is there. The file of an earlier rank 0 is replaced. Error(usage): another file is
  // there; Error(communication): that of another job that waits; Error(disk).
  void write(const Publication& publication);
  void remove();      // what write() has made
  void make_folder(); // for as long as the file is there, unless something else is put into it

  // The others. Nothing: there is no whole file yet. Error(usage): another file is there, or a secret that is not
  // private.
  std::optional<Publication> read() const;

 private:
  const std::string path_;
  int descriptor_ = -1; // of what write() has made
  std::optional<ScopedFolders> folders_;
};

// ROOT/gpt2-ranks-UID: a folder that only this user can enter. Error(communication) where it is anything else.
std::string runtime_folder(const std::string& root = "/tmp");

} // namespace gpt2
