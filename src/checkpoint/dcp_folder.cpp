// Folders of torch.distributed.checkpoint: the pickle .metadata says which part of which file holds which piece of
// which tensor; each part is a file of torch.save of its own.
#include <map>

#include "checkpoint/pickle.h"
#include "checkpoint/readers.h"
#include "checkpoint/saved_tensors.h"

namespace finitude::checkpoint {
namespace {

using Kind = PickleValue::Kind;

// Attributes of an object, as they were pickled.
const PickleValue& attribute(const Pickle& pickle, ValueId object, std::string_view name) {
  return pickle.at(pickle.find(pickle.at(pickle.at(object).state), name));
}

// Of a torch.Size or a tuple; empty of anything else.
std::vector<std::int64_t> size_of(const Pickle& pickle, const PickleValue& value) {
  const PickleValue& tuple = value.kind == Kind::kObject ? pickle.item(pickle.at(value.arguments), 0) : value;
  std::vector<std::int64_t> numbers;
  if (tuple.kind != Kind::kTuple) return numbers;
  for (const ValueId item : tuple.items) numbers.push_back(pickle.at(item).number);
  return numbers;
}

// A name below the folder.
bool is_plain_name(std::string_view name) {
  return !name.empty() && name[0] != '/' && name.find("..") == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

class Folder {
 public:
  Folder(std::string path, Checkpoint* checkpoint) : path_(std::move(path)), checkpoint_(*checkpoint) {}

  Status read() {
    const auto file = File::open(path_ + "/.metadata");
    if (!file.ok()) return Status(file.code(), "has a .metadata that " + file.why());
    std::string bytes;
    if (Status status = Region{*file, 0, (*file)->bytes()}.read_all(kMaxPickle, &bytes); !status.ok()) return status;
    if (Status status = pickle_.read(bytes); !status.ok()) return status.of("has a .metadata that");
    read_shapes();
    const PickleValue& parts = attribute(pickle_, pickle_.root(), "storage_data");
    if (parts.kind != Kind::kDict) return Status(StatusCode::kCorrupt, "has a .metadata of another form");
    for (std::size_t i = 0; i + 1 < parts.items.size(); i += 2) {
      if (Status status = read_part(parts.items[i], parts.items[i + 1]); !status.ok()) return status;
    }
    return {};
  }

 private:
  void read_shapes() {
    const PickleValue& described = attribute(pickle_, pickle_.root(), "state_dict_metadata");
    for (std::size_t i = 0; i + 1 < described.items.size(); i += 2)
      shapes_[pickle_.at(described.items[i]).text] =
          size_of(pickle_, attribute(pickle_, described.items[i + 1], "size"));
  }

  Status read_part(ValueId key, ValueId where) {
    const PickleValue& path = attribute(pickle_, where, "relative_path");
    const std::string_view name = attribute(pickle_, key, "fqn").text;
    const std::int64_t offset = attribute(pickle_, where, "offset").number;
    const std::int64_t length = attribute(pickle_, where, "length").number;
    if (!is_plain_name(path.text) || offset < 0 || length < 0)
      return Status(StatusCode::kCorrupt, "has a .metadata with a part that cannot be");
    const std::string file_name(path.text);
    const auto region = part_of(file_name, static_cast<std::uint64_t>(offset), static_cast<std::uint64_t>(length));
    if (!region.ok()) return Status(region.code(), "has a part, " + file_name + ", that " + region.why());
    // Objects that are no tensors are pickled as well; what tensors they hold is named below their name.
    const std::size_t first = checkpoint_.tensors.size();
    if (Status status = read_torch_zip(*region, &checkpoint_); !status.ok())
      return Status(status.code(), "has a part, " + file_name + ", that " + status.why());
    const std::vector<std::int64_t> begins = size_of(pickle_, attribute(pickle_, key, "offset"));
    for (std::size_t i = first; i < checkpoint_.tensors.size(); ++i) name_piece(name, begins, &checkpoint_.tensors[i]);
    return {};
  }

  Result<Region> part_of(const std::string& name, std::uint64_t offset, std::uint64_t length) {
    auto& file = files_[name];
    if (file == nullptr) {
      const auto opened = File::open(path_ + "/" + name);
      if (!opened.ok()) return Status(opened.code(), opened.why());
      file = *opened;
    }
    return Region{file, 0, file->bytes()}.part(offset, length);
  }

  void name_piece(std::string_view name, const std::vector<std::int64_t>& begins, Tensor* tensor) {
    const bool is_all = tensor->name == "tensor";
    tensor->name = is_all ? std::string(name) : std::string(name) + "." + tensor->name;
    tensor->sign = sign_of(tensor->name);
    const auto full = shapes_.find(name);
    if (!is_all || full == shapes_.end() || begins.size() != tensor->shape.size() ||
        full->second.size() != begins.size() || full->second == tensor->shape) {
      return;
    }
    tensor->begins = begins;
    tensor->full_shape = full->second;
  }

  std::string path_;
  Checkpoint& checkpoint_;
  Pickle pickle_;
  std::map<std::string_view, std::vector<std::int64_t>> shapes_;
  std::map<std::string, std::shared_ptr<const File>> files_;
};

}  // namespace

Status read_dcp_folder(const std::string& folder, Checkpoint* checkpoint) { return Folder(folder, checkpoint).read(); }

}  // namespace finitude::checkpoint
