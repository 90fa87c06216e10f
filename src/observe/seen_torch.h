// A tensor as the trace keeps it: where it lies, and what its values are like.
#pragma once

#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <cstdint>
#include <vector>

#include "observe/known_health.h"
#include "observe/tensor_view_torch.h"
#include "record/bad_rows.h"
#include "record/event_sink.h"
#include "record/kept_values.h"

namespace finitude::observe {

// Keeps the address, not the values: the memory is freed as always, and no use count moves.
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

enum class Look {
  kNo,     // its values are of no interest
  kKnown,  // what an earlier scan found will do, where nothing wrote since
  kFresh,  // as it is now
};

class Eye {
 public:
  // `generation` of the trace; 0: nothing is remembered.
  Eye(KnownHealth& known, std::uint64_t generation) : known_(known), generation_(generation) {}

  // Of an op that read infinities: they may be meant, a mask, and continue through it. What it makes NaN is bad all the
  // same, so that where there is NaN only those rows are listed.
  void reads_infinities() { after_infinities_ = true; }
  // Of an op that read NaN: the rows of what it makes explain nothing, and a few of them are listed.
  void reads_nan() { most_rows_ = record::kMaxBadRows; }

  // `from_memory`: its health is that of an earlier scan.
  record::SeenTensor see(const c10::TensorImpl& impl, Look look, bool* from_memory = nullptr);

 private:
  KnownHealth& known_;
  const std::uint64_t generation_;
  bool after_infinities_ = false;
  std::size_t most_rows_ = record::kMostBadRows;
};

// Memory that an op wrote without giving it back as an output; read again when the op ends. The caller of the op owns
// the tensor for that long.
struct Written {
  record::SeenTensor input;
  const char* data = nullptr;             // an address of the device's, where it has one
  c10::StorageImpl* elsewhere = nullptr;  // whose memory that is
  std::vector<std::int64_t> sizes, strides;
  sense::DType dtype = sense::DType::kOther;
  caffe2::TypeMeta type;

  // As it is now; nothing, if it cannot be read.
  sense::Health health_now() const noexcept;
  record::KeptValue kept_now(bool with_values) const;
  KnownHealth::Region region() const noexcept;

 private:
  TensorView view() const;
};

Written written_by(const c10::TensorImpl& impl, const record::SeenTensor& seen);

}  // namespace finitude::observe
