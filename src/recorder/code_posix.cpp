#include "recorder/code_posix.h"

#include <dlfcn.h>
#include <link.h>
#include <unwind.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

namespace finitude::recorder {
namespace {

std::string folder_of(const std::string& file) {
  const std::size_t slash = file.rfind('/');
  return slash == std::string::npos ? std::string() : file.substr(0, slash + 1);
}

// As the loader calls it.
std::string file_of(const void* address) {
  Dl_info info;
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

bool is_of_system(std::string_view file) {
  return file.empty() || file.starts_with("/lib") || file.starts_with("/usr/lib") || file.front() != '/';
}

struct Loaded {
  struct Part {
    std::uintptr_t begin, end, base;
  };
  std::string file;
  std::vector<Part> parts;
};

int add(dl_phdr_info* info, std::size_t, void* context) {
  auto& all = *static_cast<std::vector<Loaded>*>(context);
  Loaded& one = all.emplace_back();
  one.file = info->dlpi_name != nullptr ? info->dlpi_name : "";
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD || (header.p_flags & PF_X) == 0) continue;
    const std::uintptr_t begin = info->dlpi_addr + header.p_vaddr;
    one.parts.push_back({begin, begin + header.p_memsz, static_cast<std::uintptr_t>(info->dlpi_addr)});
  }
  return 0;
}

}  // namespace

void ProgramCode::look(const void* own, const void* torch) {
  ranges_.clear();
  files_.clear();
  std::vector<Loaded> all;
  dl_iterate_phdr(&add, &all);
  if (all.empty()) return;
  std::error_code error;
  // The first is the program, and has no name.
  all.front().file = std::filesystem::read_symlink("/proc/self/exe", error).string();
  const std::string own_file = file_of(own), folder = folder_of(file_of(torch));
  const auto is_foreign = [&](const std::string& file) {
    return file == own_file || (!folder.empty() && folder_of(file) == folder) || is_of_system(file);
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Loaded& one = all[i];
    if (i != 0 && is_foreign(one.file)) continue;
    files_.push_back(one.file);
    for (const auto& part : one.parts) ranges_.push_back({part.begin, part.end, part.base, files_.size() - 1});
  }
  std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
}

const ProgramCode::Range* ProgramCode::find(std::uintptr_t address) const noexcept {
  auto after = std::upper_bound(ranges_.begin(), ranges_.end(), address,
                                [](std::uintptr_t a, const Range& range) { return a < range.begin; });
  if (after == ranges_.begin()) return nullptr;
  const Range& range = *--after;
  return address < range.end ? &range : nullptr;
}

bool ProgramCode::contains(std::uintptr_t address) const noexcept { return find(address) != nullptr; }

CodeAddress ProgramCode::locate(std::uintptr_t address) const {
  const Range* range = find(address);
  return range == nullptr ? CodeAddress() : CodeAddress{files_[range->file], address - range->base};
}

namespace {

struct Walk {
  const ProgramCode* code;
  std::uintptr_t* addresses;
  std::size_t most, count = 0;
  std::size_t seen = 0;
};

_Unwind_Reason_Code step(_Unwind_Context* context, void* argument) {
  constexpr std::size_t kMostFrames = 512;
  auto& walk = *static_cast<Walk*>(argument);
  if (walk.count == walk.most || ++walk.seen > kMostFrames) return _URC_END_OF_STACK;
  int before = 0;
  const std::uintptr_t address = _Unwind_GetIPInfo(context, &before);
  // The call lies before the address it returns to.
  const std::uintptr_t call = before != 0 || address == 0 ? address : address - 1;
  if (walk.code->contains(call)) walk.addresses[walk.count++] = call;
  return _URC_NO_REASON;
}

}  // namespace

std::size_t program_stack(const ProgramCode& code, std::uintptr_t* addresses, std::size_t most) noexcept {
  Walk walk{&code, addresses, most};
  _Unwind_Backtrace(&step, &walk);
  return walk.count;
}

}  // namespace finitude::recorder
