// What the tracer is given beside operators: what memory is, and what the step came to.
#include "observe/seen_torch.h"
#include "observe/tracer_torch.h"

namespace finitude::observe {

void Tracer::name_storage(const c10::TensorImpl& tensor, record::Origin origin, const std::string& name) {
  TensorView v;
  if (place_of(tensor, &v)) sink_.name_memory(v.storage, origin, name);
}

void Tracer::name_batch(const c10::TensorImpl& tensor, const std::string& name) {
  const std::uint32_t stack = intern_stack();
  TensorView v;
  if (place_of(tensor, &v)) sink_.name_memory(v.storage, record::Origin::kBatch, name, stack);
}

void Tracer::add_sink(const std::string& kind, const std::string& name, const c10::TensorImpl& tensor,
                      std::uint32_t micro_batch) {
  sink_.add_sink(kind, name, Eye(known_, 0).see(tensor, Look::kFresh), micro_batch);
}

}  // namespace finitude::observe
