#include "capture/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "capture/wire.h"

namespace finitude::capture {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxHeader = 100'000'000;  // as the reference reader has it
constexpr std::size_t kMaxRank = 64;

// An object of objects of numbers and lists: nothing lies deeper than four, and no key comes twice in one
// object.
bool parse_header(std::string_view text, json* header) {
  std::vector<std::set<std::string>> keys;
  bool sound = true;
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > 4) sound = false;
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end && !keys.empty()) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.empty())
      sound &= keys.back().insert(value.get<std::string>()).second;
    return sound;
  };
  *header = json::parse(text, watch, false);
  return sound && header->is_object();
}

bool whole(const json& value, std::uint64_t most, std::uint64_t* number) {
  if (!value.is_number_unsigned()) return false;
  *number = value.get<std::uint64_t>();
  return *number <= most;
}

// data_begin, data_bytes: where in the file the tensors lie.
Status read_one(const std::string& name, const json& entry, std::uint64_t data_begin, std::uint64_t data_bytes,
                SafetensorsEntry* tensor) {
  const std::string what = "has a tensor that cannot be: ";
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets")) {
    return Status(StatusCode::kCorrupt, what + "its entry is not complete");
  }
  const json &dtype = entry["dtype"], &shape = entry["shape"], &offsets = entry["data_offsets"];
  if (!dtype.is_string() || !shape.is_array() || shape.size() > kMaxRank || !offsets.is_array() ||
      offsets.size() != 2) {
    return Status(StatusCode::kCorrupt, what + "its entry is of another form");
  }
  tensor->name = name;
  tensor->dtype = dtype.get<std::string>();
  std::uint64_t size = safetensors_item_bytes(tensor->dtype);
  if (size == 0) return Status(StatusCode::kCorrupt, what + "its dtype is unknown");
  for (const json& dimension : shape) {
    std::uint64_t extent = 0;
    if (!whole(dimension, std::uint64_t{1} << 62, &extent) || __builtin_mul_overflow(size, extent, &size)) {
      return Status(StatusCode::kTooLarge, what + "its shape is too large");
    }
    tensor->shape.push_back(static_cast<std::int64_t>(extent));
  }
  std::uint64_t begin = 0, end = 0;
  if (!whole(offsets[0], data_bytes, &begin) || !whole(offsets[1], data_bytes, &end) || begin > end ||
      end - begin != size) {
    return Status(StatusCode::kCorrupt, what + "its bytes are not those of its shape");
  }
  tensor->begin = data_begin + begin;
  tensor->end = data_begin + end;
  return {};
}

}  // namespace

std::size_t safetensors_item_bytes(std::string_view dtype) noexcept {
  static constexpr std::pair<std::string_view, std::size_t> kDTypes[] = {
      {"BOOL", 1},    {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E5M2FNUZ", 1}, {"F8_E4M3FNUZ", 1},
      {"F8_E8M0", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},     {"BF16", 2},    {"I32", 4},         {"U32", 4},
      {"F32", 4},     {"C64", 8}, {"F64", 8}, {"I64", 8},     {"U64", 8}};
  for (const auto& [name, bytes] : kDTypes) {
    if (name == dtype) return bytes;
  }
  return 0;
}

std::string safetensors_header(const std::vector<NamedTensor>& tensors) {
  json header = json::object();
  std::size_t offset = 0;
  for (const NamedTensor& tensor : tensors) {
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + tensor.bytes.size()}}};
    offset += tensor.bytes.size();
  }
  std::string text = header.dump(-1, ' ', true, json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data begin at a multiple of 8
  std::string file;
  WireWriter(&file).u64(text.size());
  return file + text;
}

std::uint64_t safetensors_header_bytes(std::string_view front) noexcept {
  WireReader in(front);
  const std::uint64_t bytes = in.u64();
  return in.ok() && bytes != 0 && bytes <= kMaxHeader ? bytes + 8 : 0;
}

Status read_safetensors_header(std::string_view bytes, std::uint64_t file_bytes,
                               std::vector<SafetensorsEntry>* entries) {
  entries->clear();
  const std::uint64_t data_begin = safetensors_header_bytes(bytes);
  if (data_begin == 0 || data_begin > bytes.size() || data_begin > file_bytes)
    return Status(StatusCode::kCorrupt, "is no safetensors file, or is cut off");
  const std::string_view text = bytes.substr(8, static_cast<std::size_t>(data_begin) - 8);
  json header;
  if (text.empty() || text[0] != '{' || !parse_header(text, &header))
    return Status(StatusCode::kCorrupt, "has a header that is not its JSON");
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    SafetensorsEntry tensor;
    if (Status status = read_one(name, entry, data_begin, file_bytes - data_begin, &tensor); !status.ok())
      return status;
    entries->push_back(std::move(tensor));
  }
  std::sort(entries->begin(), entries->end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  std::uint64_t at = data_begin;
  for (const SafetensorsEntry& tensor : *entries) {
    if (tensor.begin != at) return Status(StatusCode::kCorrupt, "has overlapping tensors, or a hole between them");
    at = tensor.end;
  }
  return at == file_bytes ? Status() : Status(StatusCode::kCorrupt, "has bytes behind its last tensor");
}

Status read_safetensors(std::string_view file, std::vector<NamedTensor>* tensors) {
  tensors->clear();
  std::vector<SafetensorsEntry> entries;
  if (Status status = read_safetensors_header(file, file.size(), &entries); !status.ok()) return status;
  for (SafetensorsEntry& entry : entries) {
    const auto begin = static_cast<std::size_t>(entry.begin), end = static_cast<std::size_t>(entry.end);
    tensors->push_back(
        {std::move(entry.name), std::move(entry.dtype), std::move(entry.shape), file.substr(begin, end - begin)});
  }
  return {};
}

}  // namespace finitude::capture
