// The course of the training on disk while it runs: run.json and store.sqlite in the folder of the run.
#include <chrono>
#include <limits>
#include <map>
#include <utility>

#include <c10/core/ScalarType.h>
#include <torch/version.h>

#include "base/process_posix.h"
#include "recorder/engine_torch.h"
#include "recorder/folder_posix.h"

namespace finitude::recorder {

using nlohmann::json;

namespace {

// As torch names it in Python; empty: of no interest.
const char* float_name(at::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    default:
      return "";
  }
}

}  // namespace

void Engine::open_store() {
  if (store_has_begun_) return;
  store_has_begun_ = true;
  if (!has_folder()) return;
  const std::string started = time_text(std::chrono::system_clock::now());
  const long pid = document_.process().pid;
  const auto state = base::process_state(pid);
  json process = {{"pid", pid}, {"machine", base::this_machine()}};
  if (state) process["start"] = state->start;
  const json run = {{"schema", 1},
                    {"process", std::move(process)},
                    {"started", started},
                    {"command", options_.redact ? json::array() : json(document_.process().command)},
                    {"script", document_.process().program},
                    {"finitude", FINITUDE_VERSION},
                    {"torch", TORCH_VERSION},
                    {"on_alarm", decide::name(policy_)},
                    {"optimizers", json::array()}};
  Status status = write_file(folder_ + "/run.json", run.dump(1, ' ', false, json::error_handler_t::replace) + "\n");
  if (status.ok())
    status = store::Writer::open(folder_ + "/store.sqlite",
                                 {{"rank", "0"},
                                  {"world", "1"},
                                  {"pid", std::to_string(pid)},
                                  {"host", options_.redact ? "" : machine_name().host},
                                  {"started", started},
                                  {"version", FINITUDE_VERSION},
                                  {"torch", TORCH_VERSION}},
                                 &store_);
  if (!status.ok()) document_.not_watched("the course of the training: store.sqlite: " + status.why());
}

void Engine::name_in_store(const Watched& watched) {
  open_store();
  if (!store_) return;
  store::OptimizerNames names{.class_name = watched.class_name(), .parameters = watched.names()};
  watched.for_each([&](std::size_t, const at::Tensor& p) { names.dtypes.emplace_back(float_name(p.scalar_type())); });
  store_->name(watched.ordinal(), std::move(names));
}

void Engine::store_step(const Watched& watched, std::uint64_t step, double loss) {
  if (!store_) return;
  store::StepRow row;
  row.step = step;
  row.optimizer = watched.ordinal();
  row.time_ns =
      static_cast<std::uint64_t>(std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
  if (!losses_.empty()) row.loss = loss;
  if (const double norm = observe::norm_of_all(watched.marks()); norm >= 0) row.gradient_norm = norm;
  stored_gradients_.clear();
  stored_norms_.clear();
  double largest = 0;
  for (const observe::GradMark& mark : watched.marks()) {
    const bool has_gradient = mark.grad != nullptr;
    if (has_gradient && mark.absmax > largest) largest = mark.absmax;
    stored_gradients_.push_back(has_gradient ? static_cast<float>(mark.absmax) : -1.0f);
    stored_norms_.push_back(has_gradient ? static_cast<float>(mark.norm) : -1.0f);
  }
  row.gradient_absmax = largest;
  row.learning_rate = learning_rate(watched.optimizer());
  row.gradients = stored_gradients_;
  row.norms = stored_norms_;
  store_->push(row);
}

void Engine::close_store() {
  if (!store_) return;
  if (!store_->is_of_this_process()) return store::Writer::let_go(std::move(store_));
  const Status status = store_->close();
  store_.reset();
  if (!status.ok()) document_.not_watched("the course of the training: store.sqlite: " + status.why());
}

}  // namespace finitude::recorder
