// Standard output that knows why it took no more: a full disk, a closed descriptor.
#pragma once

#include <streambuf>
#include <vector>

namespace finitude::cli {

// Writes to a descriptor, in large pieces. After the first failure nothing more is written.
class Output : public std::streambuf {
 public:
  explicit Output(int descriptor);
  ~Output() override;
  int error() const noexcept { return error_; }  // an errno; 0: all was written

 protected:
  int_type overflow(int_type c) override;
  int sync() override;

 private:
  int descriptor_, error_ = 0;
  std::vector<char> buffer_;
};

// A standard descriptor that is closed becomes one that nothing can be read from or written to: a file that is opened
// later would take its number.
void hold_standard_descriptors();

}  // namespace finitude::cli
