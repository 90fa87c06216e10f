#include "recorder/places_torch.h"

#include <ATen/Parallel.h>

#include <memory>
#include <mutex>
#include <string_view>

#include "recorder/code_posix.h"
#include "recorder/lines_posix.h"
#include "recorder/scopes.h"

namespace finitude::recorder {
namespace {

constexpr std::size_t kMostFrames = 48;

struct Current {
  std::mutex mutex;  // threads of the program may compute at once
  bool debug_lines = false;
  ProgramCode code;
  std::unique_ptr<SourceLines> lines;
};

// Leaked on purpose: callbacks may outlive main.
Current& current() {
  static auto* instance = new Current();
  return *instance;
}

// A compiler may have been given a relative path, of a folder that nobody knows any more: it stays as it is, and has no
// text. What lies there as seen from the folder of the moment may be another file.

// Headers whose inline functions stand between a line of the program and the operator that it calls.
bool is_library(std::string_view file) {
  for (const std::string_view system : {"/usr/include/", "/usr/lib/", "/usr/local/include/c++/"}) {
    if (file.starts_with(system)) return true;
  }
  for (const std::string_view part :
       {"/torch/include/", "/torch/csrc/", "/ATen/", "/c10/", "/include/finitude/", "/include/c++/"}) {
    if (file.find(part) != std::string_view::npos) return true;
  }
  return false;
}

bool key(std::string* bytes) {
  Current& c = current();
  std::uintptr_t addresses[kMostFrames];
  const std::size_t count = c.debug_lines ? program_stack(c.code, addresses, kMostFrames) : 0;
  bytes->assign(reinterpret_cast<const char*>(addresses), count * sizeof(std::uintptr_t));
  const auto scopes = open_scopes();
  bytes->append(reinterpret_cast<const char*>(scopes.data()), scopes.size_bytes());
  return !bytes->empty();
}

bool fill_stack(record::Stack* stack) {
  std::vector<record::Frame>* const frames = &stack->frames;
  std::string* const module = &stack->module;
  Current& c = current();
  if (c.debug_lines) {
    std::uintptr_t addresses[kMostFrames];
    const std::size_t count = program_stack(c.code, addresses, kMostFrames);
    const std::lock_guard<std::mutex> lock(c.mutex);
    for (std::size_t i = 0; c.lines != nullptr && i < count; ++i) {
      const CodeAddress address = c.code.locate(addresses[i]);
      const auto& found = c.lines->at(address.file, address.offset);
      // Of code that says no line it is the callers that do: theirs is not the line that called the operator.
      if (found.empty() && frames->empty()) break;
      for (record::Frame frame : found) {
        if (is_library(frame.file)) continue;
        frames->push_back(std::move(frame));
      }
    }
  }
  const auto scopes = open_scopes();
  for (const Scope::Site* site : scopes) {
    if (!module->empty()) module->push_back('.');
    module->append(site->name);
  }
  if (!frames->empty()) return true;
  for (auto site = scopes.rbegin(); site != scopes.rend(); ++site)
    frames->push_back({(*site)->file, (*site)->line, (*site)->name});
  return !frames->empty();
}

}  // namespace

void begin_places(bool debug_lines) {
  Current& c = current();
  const std::lock_guard<std::mutex> lock(c.mutex);
  c.debug_lines = debug_lines;
  if (!debug_lines) return;
  c.code.look(reinterpret_cast<const void*>(&begin_places),
              reinterpret_cast<const void*>(static_cast<int (*)()>(&at::get_num_threads)));
  c.lines = std::make_unique<SourceLines>();
}

void end_places() noexcept {
  Current& c = current();
  const std::lock_guard<std::mutex> lock(c.mutex);
  c.lines.reset();
}

const observe::Places& places() noexcept {
  static constexpr observe::Places both{&key, &fill_stack, /*nodes_report_backward=*/true};
  return both;
}

}  // namespace finitude::recorder
