#include "replay/tape_libraries_torch.h"

#include <ATen/DynamicLibrary.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>

#include <filesystem>
#include <map>
#include <set>

namespace finitude::replay {
namespace {

std::set<std::string> namespaces_here() {
  std::set<std::string> spaces;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames())
    spaces.insert(name.name.substr(0, name.name.find("::")));
  return spaces;
}

}  // namespace

void allow_what_registers(const std::function<void()>& load, std::vector<std::string>* namespaces) {
  const std::set<std::string> before = namespaces_here();
  load();
  for (const std::string& space : namespaces_here()) {
    if (!before.contains(space)) namespaces->push_back(space);
  }
}

std::string load_operators(const std::vector<std::string>& paths, std::vector<std::string>* namespaces) {
  for (const std::string& path : paths) {
    try {
      // A bare name would be looked for in the folders of the system.
      const std::string file = std::filesystem::absolute(path).string();
      if (!std::filesystem::is_regular_file(file)) return path + " is no library: there is no such file";
      static std::map<std::string, std::vector<std::string>> known;  // loaded once, it registers nothing a second time
      auto [at, is_new] = known.try_emplace(file);
      if (is_new) {
        try {
          allow_what_registers([&] { const at::DynamicLibrary kept(file.c_str(), nullptr, /*leak_handle=*/true); },
                               &at->second);
        } catch (...) {
          known.erase(at);
          throw;
        }
      }
      namespaces->insert(namespaces->end(), at->second.begin(), at->second.end());
    } catch (const c10::Error& e) {
      return path + " cannot be loaded: " + e.what_without_backtrace();
    } catch (const std::exception& e) {
      return path + " cannot be loaded: " + e.what();
    }
  }
  return "";
}

}  // namespace finitude::replay
