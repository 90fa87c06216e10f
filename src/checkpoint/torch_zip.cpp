// Files of torch.save: a zip archive with a pickle, data.pkl, and an entry for each storage.
#include <map>
#include <utility>

#include "archive/zip.h"
#include "checkpoint/pickle.h"
#include "checkpoint/readers.h"
#include "checkpoint/saved_tensors.h"
#include "checkpoint/views.h"

namespace finitude::checkpoint {
namespace {

constexpr std::string_view kPickle = "/data.pkl";

Status is_little_endian(const Region& byteorder) {
  std::string text;
  if (Status status = byteorder.read_all(16, &text); !status.ok()) return status;
  return text == "little" ? Status() : Status(StatusCode::kUnsupported, "was written on a big-endian machine");
}

}  // namespace

Status read_torch_zip(const Region& file, Checkpoint* checkpoint) {
  std::vector<archive::ZipEntry> entries;
  if (Status status = archive::read_zip(file, &entries); !status.ok()) return status;
  std::map<std::string_view, const archive::ZipEntry*> by_name;
  const archive::ZipEntry* described = nullptr;
  for (const archive::ZipEntry& entry : entries) {
    if (!by_name.emplace(entry.name, &entry).second)
      return Status(StatusCode::kCorrupt, "has an entry twice in its zip archive");
    if (entry.name.ends_with(kPickle)) described = &entry;
  }
  if (described == nullptr) return Status(StatusCode::kUnsupported, "is a zip archive, but none of torch.save");
  const std::string folder = described->name.substr(0, described->name.size() - kPickle.size());
  if (const auto order = by_name.find(folder + "/byteorder"); order != by_name.end()) {
    if (Status status = is_little_endian(order->second->packed); !status.ok()) return status;
  }
  if (described->method != archive::ZipEntry::Method::kStored)
    return Status(StatusCode::kUnsupported, "is a compressed zip archive: torch stores");
  std::string bytes;
  Pickle pickle;
  std::vector<SavedTensor> saved;
  if (Status status = described->packed.read_all(kMaxPickle, &bytes); !status.ok()) return status;
  if (Status status = pickle.read(bytes); !status.ok()) return status;
  if (Status status = find_tensors(pickle, &saved); !status.ok()) return status;
  std::map<std::pair<std::string, std::string>, std::size_t> storages;  // by key and dtype
  for (SavedTensor& tensor : saved) {
    const auto [found, is_new] =
        storages.try_emplace({tensor.storage_key, tensor.type.name}, checkpoint->storages.size());
    if (is_new) {
      const auto entry = by_name.find(folder + "/data/" + tensor.storage_key);
      if (entry == by_name.end()) return Status(StatusCode::kCorrupt, "lacks the values of " + tensor.view.name);
      if (entry->second->method != archive::ZipEntry::Method::kStored)
        return Status(StatusCode::kUnsupported, "is a compressed zip archive: torch stores");
      checkpoint->storages.push_back({entry->second->packed, tensor.type});
    }
    tensor.view.storage = found->second;
    const std::uint64_t there = checkpoint->storages[found->second].data.bytes / tensor.type.bytes;
    std::uint64_t span = 0;
    const bool fits = span_of(tensor.view.shape, tensor.view.strides, &span) && tensor.storage_elements <= there &&
                      (span == 0 || (tensor.view.offset <= there && span <= there - tensor.view.offset));
    if (!fits) return Status(StatusCode::kCorrupt, "has fewer values than " + tensor.view.name + " needs");
    checkpoint->tensors.push_back(std::move(tensor.view));
  }
  return {};
}

}  // namespace finitude::checkpoint
