// Small checkpoints made manually, for tests and fuzzing.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace finitude::checkpoint {

inline std::string little(std::uint64_t value, int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes.push_back(static_cast<char>(i < 8 ? value >> (8 * i) : 0));
  return bytes;
}

using ZipFiles = std::vector<std::pair<std::string, std::string>>;  // name, content

// An archive of stored entries, without checksums.
inline std::string zip_of(const ZipFiles& files) {
  std::string archive, directory;
  for (const auto& [name, content] : files) {
    const std::string sizes = little(0, 4) + little(content.size(), 4) + little(content.size(), 4);
    directory += "PK\x01\x02" + little(0, 6) + little(0, 6) + sizes + little(name.size(), 2) + little(0, 12) +
                 little(archive.size(), 4) + name;
    archive += "PK\x03\x04" + little(0, 10) + sizes + little(name.size(), 2) + little(0, 2) + name + content;
  }
  const std::size_t offset = archive.size();
  return archive + directory + "PK\x05\x06" + little(0, 4) + little(files.size(), 2) + little(files.size(), 2) +
         little(directory.size(), 4) + little(offset, 4) + little(0, 2);
}

inline std::string pickled_text(std::string_view text) { return "X" + little(text.size(), 4) + std::string(text); }
inline std::string pickled_int(std::int64_t value) { return "J" + little(static_cast<std::uint64_t>(value), 4); }
inline std::string pickled_tuple(const std::vector<std::int64_t>& numbers) {
  std::string bytes = "(";
  for (const std::int64_t number : numbers) bytes += pickled_int(number);
  return bytes + "t";
}

// A tensor as torch.save writes it.
inline std::string pickled_tensor(const std::string& storage_class, const std::string& key, std::int64_t elements,
                                  std::int64_t offset, const std::vector<std::int64_t>& shape,
                                  const std::vector<std::int64_t>& strides) {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + pickled_text("storage") + "ctorch\n" + storage_class + "\n" +
         pickled_text(key) + pickled_text("cpu") + pickled_int(elements) + "tQ" + pickled_int(offset) +
         pickled_tuple(shape) + pickled_tuple(strides) + "\x89" + "ccollections\nOrderedDict\n)RtR";
}

// A dict of such values.
inline std::string pickled_dict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string bytes = "}(";
  for (const auto& [key, value] : items) bytes += pickled_text(key) + value;
  return bytes + "u";
}

inline std::string pickle_of(const std::string& value) { return "\x80\x02" + value + "."; }

inline std::string bytes_of(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// A file of torch.save with float storages "0", "1", ...
inline std::string torch_file(const std::string& value, const std::vector<std::vector<float>>& storages) {
  ZipFiles files = {{"archive/data.pkl", pickle_of(value)}, {"archive/byteorder", "little"}};
  for (std::size_t i = 0; i < storages.size(); ++i)
    files.emplace_back("archive/data/" + std::to_string(i), bytes_of(storages[i]));
  return zip_of(files);
}

}  // namespace finitude::checkpoint
