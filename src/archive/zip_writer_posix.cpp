#include "archive/zip_writer_posix.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace finitude::archive {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20;
constexpr std::uint64_t kElsewhere = 0xffffffff;                         // the value is in the extra field
constexpr std::uint64_t kVersion = 45, kByUnix = 3 << 8;                 // 4.5 has sizes of 64 bits
constexpr std::uint64_t kDeflateMethod = 8, kFirstDate = 1 << 5 | 1;     // 1980-01-01
constexpr std::uint64_t kPlainFileMode = std::uint64_t{0100644} << 16U;  // st_mode

void put(std::string* bytes, std::uint64_t value, int count) {
  for (int i = 0; i < count; ++i) bytes->push_back(static_cast<char>(value >> (8 * i)));
}

struct Sizes {
  std::uint64_t crc = 0, packed = 0, plain = 0;
};

// What the header of an entry and its line in the directory have in common: from the version to the length of the extra
// field.
void put_about(std::string* bytes, const std::string& name, const Sizes& sizes, std::uint64_t extra_bytes) {
  put(bytes, kVersion, 2);
  put(bytes, 0, 2);
  put(bytes, kDeflateMethod, 2);
  put(bytes, 0, 2);
  put(bytes, kFirstDate, 2);
  put(bytes, sizes.crc, 4);
  put(bytes, kElsewhere, 4);
  put(bytes, kElsewhere, 4);
  put(bytes, name.size(), 2);
  put(bytes, extra_bytes, 2);
}

std::string header_of(const std::string& name, const Sizes& sizes) {
  std::string bytes = "PK\x03\x04";
  put_about(&bytes, name, sizes, 20);
  bytes += name;
  put(&bytes, 1, 2);
  put(&bytes, 16, 2);
  put(&bytes, sizes.plain, 8);
  put(&bytes, sizes.packed, 8);
  return bytes;
}

std::string line_of(const std::string& name, const Sizes& sizes, std::uint64_t header) {
  std::string bytes = "PK\x01\x02";
  put(&bytes, kVersion | kByUnix, 2);
  put_about(&bytes, name, sizes, 28);
  put(&bytes, 0, 2 + 2 + 2);  // comment, disk, kind of content
  put(&bytes, kPlainFileMode, 4);
  put(&bytes, kElsewhere, 4);
  bytes += name;
  put(&bytes, 1, 2);
  put(&bytes, 24, 2);
  put(&bytes, sizes.plain, 8);
  put(&bytes, sizes.packed, 8);
  put(&bytes, header, 8);
  return bytes;
}

// zlib's own state, freed with it. Raw: an entry has no header of zlib's.
class Deflater {
 public:
  Deflater()
      : is_open_(::deflateInit2(&stream_, Z_BEST_SPEED, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK) {}
  ~Deflater() {
    if (is_open_) ::deflateEnd(&stream_);
  }
  Deflater(const Deflater&) = delete;
  Deflater& operator=(const Deflater&) = delete;

  bool is_open() const noexcept { return is_open_; }

  // *made becomes what comes out for these bytes, at most kChunk of them. last: and nothing follows.
  void run(std::string& given, bool last, std::string* made) {
    made->clear();
    stream_.next_in = reinterpret_cast<Bytef*>(given.data());
    stream_.avail_in = static_cast<uInt>(given.size());
    do {
      const std::size_t before = made->size();
      made->resize(before + kChunk);
      stream_.next_out = reinterpret_cast<Bytef*>(made->data() + before);
      stream_.avail_out = kChunk;
      ::deflate(&stream_, last ? Z_FINISH : Z_NO_FLUSH);
      made->resize(before + kChunk - stream_.avail_out);
    } while (stream_.avail_out == 0);
  }

 private:
  z_stream stream_{};
  bool is_open_;
};

}  // namespace

Status ZipWriter::write(std::uint64_t at, const std::string& bytes) const {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t got = ::pwrite(descriptor_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(at + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Status(StatusCode::kUnwritable, std::strerror(errno));
    done += static_cast<std::size_t>(got);
  }
  return {};
}

Status ZipWriter::add(const std::string& name, const Region& content) {
  Sizes sizes{.crc = ::crc32(0, nullptr, 0), .packed = 0, .plain = content.bytes};
  const std::uint64_t header = end_;
  const std::uint64_t begin = header + header_of(name, sizes).size();
  Deflater deflater;
  if (!deflater.is_open()) return Status(StatusCode::kTooLarge, "cannot be compressed: no memory");
  std::string plain, packed;
  for (std::uint64_t at = 0; at == 0 || at < content.bytes; at += kChunk) {
    if (cancelled_ != nullptr && cancelled_->load()) return Status(StatusCode::kStopped, "was interrupted");
    plain.resize(static_cast<std::size_t>(std::min<std::uint64_t>(kChunk, content.bytes - at)));
    if (Status status = content.read(at, plain.data(), plain.size()); !status.ok()) return status;
    sizes.crc = ::crc32(sizes.crc, reinterpret_cast<const Bytef*>(plain.data()), static_cast<uInt>(plain.size()));
    deflater.run(plain, at + plain.size() == content.bytes, &packed);
    if (Status status = write(begin + sizes.packed, packed); !status.ok()) return status;
    sizes.packed += packed.size();
  }
  // Only now its sizes are known.
  if (Status status = write(header, header_of(name, sizes)); !status.ok()) return status;
  directory_ += line_of(name, sizes, header);
  end_ = begin + sizes.packed;
  ++entries_;
  return {};
}

Status ZipWriter::finish() {
  std::string end = directory_ + "PK\x06\x06";
  put(&end, 44, 8);  // what follows of this record
  put(&end, kVersion | kByUnix, 2);
  put(&end, kVersion, 2);
  put(&end, 0, 4 + 4);  // disks
  put(&end, entries_, 8);
  put(&end, entries_, 8);
  put(&end, directory_.size(), 8);
  put(&end, end_, 8);
  end += "PK\x06\x07";
  put(&end, 0, 4);
  put(&end, end_ + directory_.size(), 8);
  put(&end, 1, 4);
  end += "PK\x05\x06";
  put(&end, 0, 2 + 2);
  put(&end, entries_, 2);
  put(&end, entries_, 2);
  put(&end, directory_.size(), 4);
  put(&end, kElsewhere, 4);
  put(&end, 0, 2);
  return write(end_, end);
}

}  // namespace finitude::archive
