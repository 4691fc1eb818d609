#include "tools/prepare_data/byte_stream.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "engine/system/files.h"
#include "engine/system/stopped.h"
#include "tools/prepare_data/parquet.h"

namespace gpt2 {
namespace {

constexpr size_t kBlock = size_t{256} << 10; // compressed bytes per read
constexpr int kPollMilliseconds = 100;

[[noreturn]] void throw_damaged(const std::string& path, const std::string& how) {
  throw Error(ExitCode::data, path + " is damaged: " + how, "copy or download it again");
}

class PlainStream : public ByteStream {
 public:
  PlainStream(const InputFile& input, StopCheck stop) : path_(input.path), stop_(std::move(stop)) {
    const auto open = [&] { return ::open(path_.c_str(), O_RDONLY | O_CLOEXEC); };
    descriptor_ = input.is_stdin() ? STDIN_FILENO : retry_on_eintr(open);
    if (descriptor_ < 0) throw_system_error(ExitCode::data, "open", path_, errno);
  }
  ~PlainStream() override {
    if (descriptor_ != STDIN_FILENO) ::close(descriptor_);
  }
  PlainStream(const PlainStream&) = delete;
  PlainStream& operator=(const PlainStream&) = delete;

  size_t read(std::span<char> out) override {
    size_t filled = 0;
    while (filled < out.size()) {
      if (descriptor_ == STDIN_FILENO) wait_for_bytes(descriptor_, stop_);
      const auto rest = out.subspan(filled);
      const ssize_t got = retry_on_eintr([&] { return ::read(descriptor_, rest.data(), rest.size()); });
      if (got < 0) throw_system_error(ExitCode::data, "read", path_, errno);
      if (got == 0) break;
      filled += static_cast<size_t>(got);
    }
    position_ += static_cast<int64_t>(filled);
    return filled;
  }
  int64_t bytes_of_file() const override { return position_; }
  void skip(int64_t bytes) override {
    if (descriptor_ == STDIN_FILENO) return ByteStream::skip(bytes);
    position_ += bytes;
    if (::lseek(descriptor_, position_, SEEK_SET) < 0) throw_system_error(ExitCode::data, "read", path_, errno);
  }

 private:
  std::string path_;
  StopCheck stop_;
  int descriptor_;
  int64_t position_ = 0;
};

// Shared by gzip and zstd: decompresses blocks until `out` is full or the file ends between two streams (files of both
// formats may be concatenated).
class CompressedStream : public ByteStream {
 public:
  CompressedStream(const InputFile& input, const StopCheck& stop)
      : path_(input.path), file_(input, stop), block_(kBlock) {}

  size_t read(std::span<char> out) override {
    size_t filled = 0;
    while (filled < out.size()) {
      if (begin_ == end_ && !ended_) {
        begin_ = 0;
        end_ = file_.read(block_);
        ended_ = end_ == 0;
      }
      const size_t before = filled, begin = begin_;
      decompress(out, filled);
      if (!ended_ || filled > before || begin_ > begin) continue;
      if (inside_ || file_.bytes_of_file() == 0) throw_damaged(path_, "its compressed stream is cut short");
      break;
    }
    return filled;
  }
  int64_t bytes_of_file() const override { return file_.bytes_of_file() - static_cast<int64_t>(end_ - begin_); }

 protected:
  // Decompresses from `compressed()` into `out` at `filled`, as far as both allow; advances begin_, sets inside_.
  virtual void decompress(std::span<char> out, size_t& filled) = 0;
  std::span<char> compressed() { return std::span(block_).subspan(begin_, end_ - begin_); }

  std::string path_;
  size_t begin_ = 0, end_ = 0; // of the block's bytes not yet decompressed
  bool inside_ = false;        // within a compressed stream

 private:
  PlainStream file_;
  std::vector<char> block_;
  bool ended_ = false;
};

class GzipStream : public CompressedStream {
 public:
  GzipStream(const InputFile& input, const StopCheck& stop) : CompressedStream(input, stop) {
    if (::inflateInit2(&state_, 15 + 16) != Z_OK) throw std::bad_alloc(); // 15: largest window; 16: gzip header
  }
  ~GzipStream() override { ::inflateEnd(&state_); }
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;

 protected:
  void decompress(std::span<char> out, size_t& filled) override {
    const std::span<char> from = compressed();
    if (from.empty() && !inside_) return;
    if (!std::exchange(inside_, true)) ::inflateReset(&state_);
    state_.next_in = reinterpret_cast<Bytef*>(from.data());
    state_.avail_in = static_cast<uInt>(from.size());
    state_.next_out = reinterpret_cast<Bytef*>(out.data() + filled);
    state_.avail_out = static_cast<uInt>(std::min<size_t>(out.size() - filled, 1 << 30));
    const uInt room = state_.avail_out;
    const int status = ::inflate(&state_, Z_NO_FLUSH);
    if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR)
      throw_damaged(path_, state_.msg ? state_.msg : "its gzip stream cannot be read");
    begin_ = end_ - state_.avail_in;
    filled += room - state_.avail_out;
    inside_ = status != Z_STREAM_END;
  }

 private:
  z_stream state_ = {};
};

class ZstdStream : public CompressedStream {
 public:
  ZstdStream(const InputFile& input, const StopCheck& stop)
      : CompressedStream(input, stop), state_(ZSTD_createDCtx(), ZSTD_freeDCtx) {
    if (!state_) throw std::bad_alloc();
    ZSTD_DCtx_setParameter(state_.get(), ZSTD_d_windowLogMax, 31); // accepts zstd --long=31
  }

 protected:
  void decompress(std::span<char> out, size_t& filled) override {
    const std::span<char> from = compressed();
    if (from.empty() && !inside_) return;
    ZSTD_inBuffer input{from.data(), from.size(), 0};
    ZSTD_outBuffer output{out.data(), out.size(), filled};
    const size_t status = ZSTD_decompressStream(state_.get(), &output, &input);
    if (ZSTD_isError(status)) throw_damaged(path_, ZSTD_getErrorName(status));
    begin_ += input.pos;
    filled = output.pos;
    inside_ = status != 0; // 0: the frame is complete and fully written to `out`
  }

 private:
  std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> state_;
};

} // namespace

void ByteStream::skip(int64_t bytes) {
  std::vector<char> block(size_t{1} << 20);
  while (bytes > 0) {
    const size_t got = read(std::span(block).first(static_cast<size_t>(std::min<int64_t>(bytes, 1 << 20))));
    if (got == 0) return; // the file has shrunk: the caller's next read returns 0
    bytes -= static_cast<int64_t>(got);
  }
}

void wait_for_bytes(int descriptor, const StopCheck& stop) {
  pollfd input{descriptor, POLLIN, 0};
  while (stop && ::poll(&input, 1, kPollMilliseconds) <= 0) // timeout or EINTR
    if (stop()) throw Stopped{};
}

std::unique_ptr<ByteStream> open_stream(const InputFile& file, const std::string& field, int parquet_readers,
                                        const StopCheck& stop) {
  if (file.format == TextFormat::parquet) return open_parquet(file, field, parquet_readers, stop);
  if (file.compression == Compression::gzip) return std::make_unique<GzipStream>(file, stop);
  if (file.compression == Compression::zstd) return std::make_unique<ZstdStream>(file, stop);
  return std::make_unique<PlainStream>(file, stop);
}

} // namespace gpt2
