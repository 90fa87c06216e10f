// Which code in memory is the program's own, its libraries' included: neither torch's, nor this library's, nor a
// runtime's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace finitude::recorder {

// An address as addr2line wants it.
struct CodeAddress {
  std::string file;  // the program or shared library
  std::uintptr_t offset = 0;
};

class ProgramCode {
 public:
  // As what is loaded now. own: an address in this library; torch: one in a library of torch.
  void look(const void* own, const void* torch);
  bool contains(std::uintptr_t address) const noexcept;
  CodeAddress locate(std::uintptr_t address) const;

 private:
  struct Range {
    std::uintptr_t begin = 0, end = 0, base = 0;
    std::size_t file = 0;
  };
  const Range* find(std::uintptr_t address) const noexcept;

  std::vector<Range> ranges_;  // sorted
  std::vector<std::string> files_;
};

// Addresses that the calls of this thread return to, innermost first, of the program's code only. At most `most`.
std::size_t program_stack(const ProgramCode& code, std::uintptr_t* addresses, std::size_t most) noexcept;

}  // namespace finitude::recorder
