// Which bytes the forward pass found finite when it last read them. What backward reads there was saved for it: bad
// values in such bytes, written by no traced op, came in after forward had used them.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "record/trace.h"

namespace finitude::locate {

class SeenFinite {
 public:
  explicit SeenFinite(std::size_t storages) : spans_(storages) {}

  // One read outside of backward; its storage is one of the trace. A read that was not looked at says nothing.
  void note(const record::TensorUse& use);
  // Was every byte of `use` finite at its last such read?
  bool covers(const record::TensorUse& use) const;

 private:
  using Spans = std::map<std::int64_t, std::int64_t>;  // begin, end; disjoint and not adjacent
  std::vector<Spans> spans_;
};

}  // namespace finitude::locate
