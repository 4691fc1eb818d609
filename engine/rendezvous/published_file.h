// File with the address of rank 0 and the secret: created by rank 0, readable by its user alone, removed after all
// ranks have joined. Foreign files are never replaced or removed.
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

  // Rank 0. Locks the file until remove(). Replaces the file of an earlier rank 0. Throws Error(usage) for a foreign
  // file, Error(communication) for the file of another waiting job, Error(disk).
  void write(const Publication& publication);
  void remove();      // of write()
  void make_folder(); // removed with the file, unless it holds other files

  // Other ranks. nullopt: no complete file yet. Throws Error(usage) for a foreign file and for a secret that others can
  // read.
  std::optional<Publication> read() const;

 private:
  const std::string path_;
  int descriptor_ = -1; // of the file that write() created
  std::optional<ScopedFolders> folders_;
};

// ROOT/gpt2-ranks-UID, a folder with mode 0700. Throws Error(communication) if others own or can enter it.
std::string runtime_folder(const std::string& root = "/tmp");

} // namespace gpt2
