// Which lines are an installed package's, which its user cannot be asked to change.
#pragma once

#include <string_view>

namespace finitude::record {

inline constexpr std::string_view kPackageFolders[] = {"/site-packages/", "/dist-packages/"};

inline bool is_of_package(std::string_view file) {
  for (const std::string_view folder : kPackageFolders) {
    if (file.find(folder) != std::string_view::npos) return true;
  }
  return false;
}

// "lightning/fabric/x.py" of "/.../site-packages/lightning/fabric/x.py"; empty for the file of no package.
inline std::string_view path_in_package(std::string_view file) {
  for (const std::string_view folder : kPackageFolders) {
    if (const auto at = file.rfind(folder); at != std::string_view::npos) return file.substr(at + folder.size());
  }
  return {};
}

}  // namespace finitude::record
