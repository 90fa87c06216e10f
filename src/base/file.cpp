#include "base/file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>

namespace finitude::base {

Status read_file(const std::string& path, std::string* bytes, std::uint64_t most) {
  std::error_code error;
  const std::filesystem::file_status kind = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(kind)) return Status(StatusCode::kUnreadable, "is a folder");
  // A pipe would be waited for, a device has no end.
  if (std::filesystem::exists(kind) && !std::filesystem::is_regular_file(kind))
    return Status(StatusCode::kUnreadable, "is no plain file");
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return Status(StatusCode::kUnreadable,
                  std::string("cannot be opened") + (errno != 0 ? std::string(": ") + std::strerror(errno) : ""));
  const std::uint64_t size_bytes = std::filesystem::file_size(path, error);
  if (error) return Status(StatusCode::kUnreadable, "is no plain file");
  if (size_bytes > most) return Status(StatusCode::kTooLarge, "is larger than " + std::to_string(most >> 20) + " MiB");
  try {
    bytes->resize(static_cast<std::size_t>(size_bytes));
  } catch (const std::exception&) {  // a file may say that it is as long as it likes
    return Status(StatusCode::kTooLarge,
                  "does not fit into memory: it is said to have " + std::to_string(size_bytes >> 20) + " MiB");
  }
  file.read(bytes->data(), static_cast<std::streamsize>(size_bytes));
  return static_cast<std::uint64_t>(file.gcount()) == size_bytes
             ? Status()
             : Status(StatusCode::kUnreadable, "cannot be read to its end");
}

Status write_whole(const std::string& path, const std::vector<std::string_view>& parts, std::string_view beside) {
  std::error_code error;
  const std::filesystem::file_status there = std::filesystem::symlink_status(path, error);
  const bool is_plain = !std::filesystem::exists(there) || std::filesystem::is_regular_file(there);
  const std::string to = is_plain ? path + std::string(beside) : path;
  const auto failed = [](int number) {
    errno = number;
    return Status(StatusCode::kUnwritable,
                  "cannot be written" + (number != 0 ? std::string(": ") + std::strerror(number) : std::string()));
  };
  errno = 0;
  std::ofstream file(to, std::ios::binary | std::ios::trunc);
  if (!file) return failed(errno);
  for (const std::string_view part : parts) file.write(part.data(), static_cast<std::streamsize>(part.size()));
  file.close();
  if (file && (!is_plain || std::rename(to.c_str(), path.c_str()) == 0)) return {};
  const int number = errno;
  if (is_plain) std::remove(to.c_str());
  return failed(number);
}

}  // namespace finitude::base
