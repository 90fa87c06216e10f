// Lines of source for addresses of code, by addr2line in processes of its own. For the second run only: a first answer
// may take a second.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "record/trace.h"

namespace finitude::recorder {

class SourceLines {
 public:
  SourceLines();
  ~SourceLines();  // ends the processes

  // The functions that lie at this address, the innermost inlined one first. Empty where there is no debug information,
  // no addr2line, or no answer in time; a file that gave none is not asked again.
  const std::vector<record::Frame>& at(const std::string& file, std::uintptr_t offset);

 private:
  class Process;
  std::map<std::string, std::unique_ptr<Process>> processes_;
  std::map<std::pair<std::string, std::uintptr_t>, std::vector<record::Frame>> known_;
};

}  // namespace finitude::recorder
