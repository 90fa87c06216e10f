#include "recorder/code_posix.h"

#include <link.h>
#include <unwind.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string_view>

namespace finitude::recorder {
namespace {

// Libraries whose frames stand between a line of the program and the operator that it calls, by what they are called
// wherever they lie: torch's own and those that it brings along, the runtimes of C and C++, and ours.
bool is_between(std::string_view file) {
  static constexpr std::string_view kNames[] = {"libtorch",
                                                "libtorch_cpu",
                                                "libtorch_cuda",
                                                "libtorch_cuda_linalg",
                                                "libtorch_hip",
                                                "libtorch_xpu",
                                                "libtorch_python",
                                                "libtorch_global_deps",
                                                "libc10",
                                                "libc10_cuda",
                                                "libc10_hip",
                                                "libc10_xpu",
                                                "libcaffe2_nvrtc",
                                                "libshm",
                                                "libgomp",
                                                "libomp",
                                                "libiomp5",
                                                "libstdc++",
                                                "libsupc++",
                                                "libc++",
                                                "libc++abi",
                                                "libgcc_s",
                                                "libc",
                                                "libm",
                                                "libpthread",
                                                "libdl",
                                                "librt",
                                                "ld-linux-x86-64",
                                                "ld-linux-aarch64",
                                                "linux-vdso",
                                                "libasan",
                                                "libubsan",
                                                "libtsan",
                                                "liblsan",
                                                "libfinitude_core",
                                                "libfinitude_torch"};
  if (file.empty() || file.front() == '[') return true;  // the kernel's
  file.remove_prefix(file.rfind('/') + 1);
  return file.starts_with("libmkl_") || std::any_of(std::begin(kNames), std::end(kNames), [&](std::string_view name) {
           // "libgomp-a34b3233.so.1" is what a wheel makes of it.
           return file.starts_with(name) &&
                  (file.size() == name.size() || file[name.size()] == '.' || file[name.size()] == '-');
         });
}

// Where each piece of memory comes from: begin -> file, absolute, as the kernel knows it. The loader's names may be
// relative to a folder that the program has left.
std::map<std::uintptr_t, std::string> mapped_files() {
  std::map<std::uintptr_t, std::string> files;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::size_t path = line.find_first_of("/[");
    std::uintptr_t begin = 0;
    std::from_chars(line.data(), line.data() + line.size(), begin, 16);
    files[begin] = path == std::string::npos ? "" : line.substr(path);
  }
  return files;
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
  const auto mapped = mapped_files();
  for (Loaded& one : all) {
    if (one.parts.empty()) continue;
    auto after = mapped.upper_bound(one.parts.front().begin);
    if (after != mapped.begin() && (--after)->second.starts_with('/')) one.file = after->second;
  }
  // The first is the program, and has no name.
  all.front().file = std::filesystem::read_symlink("/proc/self/exe", error).string();
  const auto holds = [](const Loaded& one, const void* code) {
    const auto address = reinterpret_cast<std::uintptr_t>(code);
    return std::any_of(one.parts.begin(), one.parts.end(),
                       [&](const auto& part) { return part.begin <= address && address < part.end; });
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Loaded& one = all[i];
    if (i != 0 && (is_between(one.file) || holds(one, own) || holds(one, torch))) continue;
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
