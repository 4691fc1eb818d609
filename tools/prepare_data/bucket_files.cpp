#include "tools/prepare_data/bucket_files.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

namespace gpt2 {
namespace {

struct Header {
  uint64_t key;
  uint32_t tokens;
  uint16_t validation, part;
};
static_assert(sizeof(Header) == 16);

constexpr size_t kReadBytes = size_t{4} << 20;
constexpr size_t kTokensPerPoll = size_t{4} << 20;

// First key of the i-th of n equal ranges: ceil(i * 2^64 / n).
uint64_t range_begin(uint64_t i, uint64_t n) {
  return static_cast<uint64_t>(((static_cast<unsigned __int128>(i) << 64) + n - 1) / n);
}

size_t range_of(uint64_t key, uint64_t n) {
  return static_cast<size_t>((static_cast<unsigned __int128>(key) * n) >> 64);
}

[[noreturn]] void throw_damaged(const std::string& path) {
  throw Error(ExitCode::data, path + " is damaged", "start over with --overwrite");
}

// Reads a bucket file record by record through one buffer.
class RecordReader {
 public:
  RecordReader(const std::string& path, int64_t bytes) : file_(File::open(path)), bytes_(bytes) {}

  bool next(Header& header) {
    if (begin_ == buffer_.size() && position_ == bytes_) return false;
    need(sizeof header);
    std::memcpy(&header, take(sizeof header), sizeof header);
    need(size_t{header.tokens} * 2);
    return true;
  }
  const std::byte* take(size_t bytes) {
    begin_ += bytes;
    return buffer_.data() + begin_ - bytes;
  }

 private:
  void need(size_t bytes) {
    const size_t have = buffer_.size() - begin_;
    if (have >= bytes) return;
    const auto left = static_cast<size_t>(bytes_ - position_);
    if (have + left < bytes) throw_damaged(file_.path());
    buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<ptrdiff_t>(begin_));
    begin_ = 0;
    buffer_.resize(std::min(have + left, std::max(bytes, kReadBytes)));
    file_.read_at(position_, std::span(buffer_).subspan(have));
    position_ += static_cast<int64_t>(buffer_.size() - have);
  }

  File file_;
  int64_t bytes_, position_ = 0; // of the file; read into the buffer so far
  std::vector<std::byte> buffer_;
  size_t begin_ = 0; // of the bytes not yet taken
};

// Equal documents have equal keys, so they are adjacent; different documents rarely share a key.
void drop_duplicates(BucketFiles::Records& loaded) {
  std::vector<BucketFiles::Record> kept;
  size_t first_of_key = 0; // in `kept`
  for (const BucketFiles::Record& record : loaded.records) {
    if (kept.empty() || kept.back().key != record.key) first_of_key = kept.size();
    const auto is_equal = [&](const BucketFiles::Record& other) {
      return !other.part && std::ranges::equal(other.tokens, record.tokens);
    };
    if (record.part || std::none_of(kept.begin() + static_cast<ptrdiff_t>(first_of_key), kept.end(), is_equal))
      kept.push_back(record);
    else
      loaded.duplicates++;
  }
  loaded.records = std::move(kept);
}

} // namespace

BucketFiles::BucketFiles(BucketOptions options, const std::vector<int64_t>& bytes)
    : options_(std::move(options)),
      buffer_bytes_(static_cast<size_t>(
          std::clamp<int64_t>(options_.most_bytes / 4 / static_cast<int64_t>(options_.count), 4 << 10, 1 << 20))) {
  const size_t count = std::max(options_.keep_order ? 1 : options_.count, bytes.size());
  for (size_t i = 0; i < count; ++i) open_next(i < bytes.size() ? bytes[i] : 0);
}

std::string BucketFiles::path(size_t bucket) const { return options_.folder + "/bucket_" + std::to_string(bucket); }

void BucketFiles::open_next(int64_t bytes) {
  if (options_.keep_order && !buckets_.empty())
    close(buckets_.back()); // their number is unbounded, that of open files is not
  const std::string name = path(buckets_.size());
  std::error_code ignored;
  if (bytes > 0 && !std::filesystem::exists(name, ignored)) {
    buckets_.push_back({std::nullopt, bytes, {}});
    return;
  }
  File file = File::update(name);
  if (file.size() < bytes) throw_damaged(name);
  file.resize(bytes);
  buckets_.push_back({std::move(file), bytes, {}});
}

void BucketFiles::flush(Bucket& bucket) {
  bucket.file->write_at(bucket.bytes, bucket.tail);
  bucket.bytes += static_cast<int64_t>(bucket.tail.size());
  bucket.tail.clear();
}

void BucketFiles::close(Bucket& bucket) {
  if (!bucket.file) return;
  flush(bucket);
  bucket.file->sync();
  bucket.file.reset();
}

void BucketFiles::append(uint64_t key, bool validation, std::span<const uint16_t> tokens, bool part) {
  if (options_.keep_order &&
      buckets_.back().bytes + static_cast<int64_t>(buckets_.back().tail.size()) >= options_.most_bytes)
    open_next(0);
  Bucket& bucket = options_.keep_order ? buckets_.back() : buckets_[range_of(key, options_.count)];
  const Header header{key, static_cast<uint32_t>(tokens.size()), validation, part};
  const auto head = std::as_bytes(std::span(&header, 1)), body = std::as_bytes(tokens);
  bucket.tail.insert(bucket.tail.end(), head.begin(), head.end());
  bucket.tail.insert(bucket.tail.end(), body.begin(), body.end());
  if (bucket.tail.size() >= buffer_bytes_) flush(bucket);
}

void BucketFiles::sync() {
  for (Bucket& bucket : buckets_) {
    if (!bucket.file) continue;
    flush(bucket);
    bucket.file->sync();
  }
}

std::vector<int64_t> BucketFiles::bytes() const {
  std::vector<int64_t> bytes;
  for (const Bucket& bucket : buckets_) bytes.push_back(bucket.bytes + static_cast<int64_t>(bucket.tail.size()));
  return bytes;
}

std::vector<BucketFiles::Slice> BucketFiles::slices() const {
  std::vector<Slice> slices;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    if (options_.keep_order) {
      slices.push_back({i});
      continue;
    }
    const int64_t parts = std::max<int64_t>(1, (buckets_[i].bytes + options_.most_bytes - 1) / options_.most_bytes);
    const auto all = static_cast<uint64_t>(parts) * options_.count, first = static_cast<uint64_t>(parts) * i;
    for (uint64_t part = first; part < first + static_cast<uint64_t>(parts); ++part)
      slices.push_back(
          {i, range_begin(part, all), range_begin(part + 1, all) - 1}); // the last slice: 0 - 1 == UINT64_MAX
  }
  return slices;
}

std::optional<BucketFiles::Records> BucketFiles::load(const Slice& slice, const std::function<bool()>& stop) const {
  Records loaded;
  std::vector<size_t> begins;
  const int64_t bytes = buckets_[slice.bucket].bytes;
  loaded.memory.reserve(static_cast<size_t>(std::min(bytes, options_.most_bytes + options_.most_bytes / 8)) / 2);
  RecordReader reader(path(slice.bucket), bytes);
  size_t polled_at = 0; // tokens
  for (Header header{}; reader.next(header);) {
    if (loaded.memory.size() - polled_at >= kTokensPerPoll && stop && stop()) return std::nullopt;
    if (loaded.memory.size() - polled_at >= kTokensPerPoll) polled_at = loaded.memory.size();
    const std::byte* const tokens = reader.take(size_t{header.tokens} * 2);
    if (!options_.keep_order && (header.key < slice.first_key || header.key > slice.last_key)) continue;
    begins.push_back(loaded.memory.size());
    loaded.memory.resize(loaded.memory.size() + header.tokens);
    std::memcpy(loaded.memory.data() + begins.back(), tokens, size_t{header.tokens} * 2);
    loaded.records.push_back({header.key, header.validation != 0, header.part != 0, {}});
  }
  begins.push_back(loaded.memory.size());
  for (size_t i = 0; i < loaded.records.size(); ++i)
    loaded.records[i].tokens = std::span(loaded.memory).subspan(begins[i], begins[i + 1] - begins[i]);
  if (options_.keep_order) return loaded;
  std::ranges::stable_sort(loaded.records, {}, &Record::key); // stable: the file has the order of the input
  if (options_.deduplicate) drop_duplicates(loaded);
  return loaded;
}

void BucketFiles::remove(size_t bucket) {
  std::error_code ignored; // the whole folder is removed at the end
  std::filesystem::remove(path(bucket), ignored);
}

} // namespace gpt2
