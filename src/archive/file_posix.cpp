#include "archive/file_posix.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace finitude::archive {

Result<std::shared_ptr<const File>> File::open(const std::string& path) {
  // Non-blocking: a pipe would be waited for.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return Status(StatusCode::kUnreadable, std::string("cannot be opened: ") + std::strerror(errno));
  struct stat about {};
  if (::fstat(descriptor, &about) != 0 || !S_ISREG(about.st_mode)) {
    ::close(descriptor);
    return Status(StatusCode::kUnreadable, "is no plain file");
  }
#ifdef POSIX_FADV_SEQUENTIAL
  ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_SEQUENTIAL);
#endif
  return std::shared_ptr<const File>(new File(descriptor, static_cast<std::uint64_t>(about.st_size)));
}

std::shared_ptr<const File> File::of_bytes(std::string bytes) {
  return std::shared_ptr<const File>(new File(std::move(bytes)));
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status File::read(std::uint64_t offset, void* into, std::size_t size_bytes) const {
  auto* at = static_cast<char*>(into);
  if (offset > bytes_ || size_bytes > bytes_ - offset) return Status(StatusCode::kCorrupt, "is cut off");
  if (descriptor_ < 0) {
    memory_.copy(at, size_bytes, static_cast<std::size_t>(offset));
    return {};
  }
  while (size_bytes != 0) {
    const ssize_t got = ::pread(descriptor_, at, size_bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Status(StatusCode::kUnreadable, std::string("cannot be read: ") + std::strerror(errno));
    if (got == 0) return Status(StatusCode::kCorrupt, "became shorter while it was read");
    at += got;
    offset += static_cast<std::uint64_t>(got);
    size_bytes -= static_cast<std::size_t>(got);
  }
  return {};
}

Status Region::read(std::uint64_t at, void* into, std::size_t size_bytes) const {
  if (at > bytes || size_bytes > bytes - at) return Status(StatusCode::kCorrupt, "is cut off");
  return file->read(offset + at, into, size_bytes);
}

Result<Region> Region::part(std::uint64_t at, std::uint64_t size_bytes) const {
  if (at > bytes || size_bytes > bytes - at) return Status(StatusCode::kCorrupt, "is cut off");
  return Region{file, offset + at, size_bytes};
}

Status Region::read_all(std::uint64_t most_bytes, std::string* into) const {
  if (bytes > most_bytes)
    return Status(StatusCode::kTooLarge, "has a description of more than " + std::to_string(most_bytes >> 20) + " MiB");
  into->resize(static_cast<std::size_t>(bytes));
  return read(0, into->data(), into->size());
}

}  // namespace finitude::archive
