#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "checkpoint/readers.h"

namespace finitude::checkpoint {
namespace {

namespace fs = std::filesystem;

// Of protocol 2: the number that torch.save wrote before version 1.6, 0x1950a86a20f9469cfc6c.
constexpr std::string_view kLegacy("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e", 15);

constexpr std::uint64_t kFront = 512;  // bytes: the name of an archive's first entry lies there

// Does a zip archive begin with an entry of torch.save, or of a script of torch? A packed capsule is one as well.
bool is_of_torch(std::string_view front) {
  constexpr std::size_t kName = 30;  // where it is in the header of an entry
  return front.size() > kName && front.substr(kName).find("/data") != std::string_view::npos;
}

}  // namespace

FileKind kind_of(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error))
    return fs::exists(fs::path(path) / ".metadata", error) ? FileKind::kDcpFolder : FileKind::kNone;
  const auto file = File::open(path);
  if (!file.ok()) return FileKind::kNone;
  const fs::path name = fs::path(path).filename();
  if (name.extension() == ".distcp") return FileKind::kDcpPart;
  if (name.extension() == ".safetensors") return FileKind::kSafetensors;
  std::string front(std::min<std::uint64_t>((*file)->bytes(), kFront), '\0');
  if (!(*file)->read(0, front.data(), front.size()).ok()) return FileKind::kNone;
  if (front.starts_with("PK\x03\x04")) return is_of_torch(front) ? FileKind::kTorchZip : FileKind::kNone;
  return front.starts_with(kLegacy) ? FileKind::kTorchLegacy : FileKind::kNone;
}

Result<Checkpoint> read_checkpoint(const std::string& path) {
  Checkpoint checkpoint;
  const FileKind kind = kind_of(path);
  Region all;
  if (kind != FileKind::kDcpFolder) {
    const auto file = File::open(path);
    if (!file.ok()) return Status(file.code(), file.why());
    all = {*file, 0, (*file)->bytes()};
  }
  Status status;
  switch (kind) {
    case FileKind::kTorchZip:
      checkpoint.format = "torch zip";
      status = read_torch_zip(all, &checkpoint);
      break;
    case FileKind::kSafetensors:
      checkpoint.format = "safetensors";
      status = read_safetensors_file(all, &checkpoint);
      break;
    case FileKind::kDcpFolder:
      checkpoint.format = "DCP";
      status = read_dcp_folder(path, &checkpoint);
      break;
    case FileKind::kDcpPart:
      status = Status(StatusCode::kUnsupported, "is a part of a DCP checkpoint: name its folder");
      break;
    case FileKind::kTorchLegacy:
      status = Status(StatusCode::kUnsupported,
                      "has the format of torch.save before version 1.6: load it and save it again to read it here");
      break;
    case FileKind::kNone:
      status = Status(StatusCode::kCorrupt, "is no checkpoint of torch.save, safetensors or DCP, or is cut off");
      break;
  }
  if (!status.ok()) return status;
  return checkpoint;
}

}  // namespace finitude::checkpoint
