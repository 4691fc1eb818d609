// File with the address of rank 0 and the secret: created by rank 0, readable by its user alone, removed after all
// ranks have joined. Foreign files are never replaced or removed.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/network/secret.h"
#include "engine/system/files.h"

namespace gpt2 {

// Address of rank 0, as text in a file or over MPI:
//
//   gpt2_ranks 2
//   key HEX             64 digits, if the ranks have no token
//   port 4000
//   address 10.0.0.1    one or more
//   end
struct Publication {
  std::optional<Key> key;
  int port = 0;
  std::vector<std::string> addresses;
};
std::string to_text(const Publication& publication);
std::optional<Publication> read_publication(std::string_view text); // nullopt: invalid or incomplete
bool is_publication(std::string_view text);                         // of any version, by its first word
bool may_become_publication(std::string_view text);                 // is one, or the beginning of one
constexpr size_t kPublicationBytes = 1 << 16;                       // at most

class PublishedFile {
 public:
  // `makes_folder`: write() makes the folder of the file, and remove() removes it unless it holds other files.
  explicit PublishedFile(std::string path, bool makes_folder = false)
      : path_(std::move(path)), makes_folder_(makes_folder) {}
  ~PublishedFile() { remove(); }
  PublishedFile(const PublishedFile&) = delete;

  const std::string& path() const { return path_; }

  // Rank 0. Locks the file until remove(). Replaces the file of an earlier rank 0. Throws Error(usage) for a foreign
  // file, Error(communication) for the file of another waiting job, Error(disk).
  void write(const Publication& publication);
  void remove(); // of write()

  // Other ranks. nullopt: no complete file yet. Throws Error(usage) for a foreign file and for a secret that others can
  // read.
  std::optional<Publication> read() const;

 private:
  const std::string path_;
  const bool makes_folder_;
  OwnedDescriptor made_; // the file that write() created
  std::optional<ScopedFolders> folders_;
};

// ROOT/gpt2-ranks-UID, a folder with mode 0700. Throws Error(communication) if others own or can enter it.
std::string runtime_folder(const std::string& root = "/tmp");

} // namespace gpt2
