#include "finitude/recorder.h"

#include <torch/nn/module.h>

#include <exception>

#include "recorder/engine_torch.h"

namespace finitude {

class Recorder::Impl : public recorder::Engine {
 public:
  using Engine::Engine;
  using Engine::watch;
  void watch(torch::optim::Optimizer& optimizer, const torch::nn::Module& model) {
    safely([&] {
      NamedTensors parameters, buffers;
      for (const auto& item : model.named_parameters()) parameters.emplace_back(item.key(), item.value());
      for (const auto& item : model.named_buffers()) buffers.emplace_back(item.key(), item.value());
      watch(optimizer, parameters, buffers);
    });
  }
};

Recorder::Recorder(RecorderOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Recorder::~Recorder() = default;

void Recorder::watch(torch::optim::Optimizer& optimizer) { impl_->watch(optimizer, NamedTensors(), NamedTensors()); }

void Recorder::watch(torch::optim::Optimizer& optimizer, const torch::nn::Module& model) {
  impl_->watch(optimizer, model);
}

void Recorder::watch(torch::optim::Optimizer& optimizer, const NamedTensors& parameters) {
  impl_->watch(optimizer, parameters, {});
}

void Recorder::watch(torch::optim::Optimizer& optimizer, const NamedTensors& parameters, const NamedTensors& buffers) {
  impl_->watch(optimizer, parameters, buffers);
}

void Recorder::watch(const at::Generator& generator) { impl_->watch(generator); }
void Recorder::forget(const torch::optim::Optimizer& optimizer) { impl_->forget(optimizer); }

StepResult Recorder::step(torch::optim::Optimizer& optimizer, const std::function<at::Tensor()>& closure) {
  return impl_->step(optimizer, closure);
}

StepResult Recorder::gate(torch::optim::Optimizer& optimizer, const at::Tensor& loss) {
  return impl_->gate(optimizer, loss);
}
void Recorder::loss(const at::Tensor& loss) { impl_->loss(loss); }
void Recorder::scan(torch::optim::Optimizer& optimizer) { impl_->scan(optimizer); }
void Recorder::input(const std::string& name, const at::Tensor& tensor) { impl_->input(name, tensor); }
bool Recorder::running_again() const noexcept { return impl_->running_again(); }
bool Recorder::is_on() const noexcept { return impl_->is_on(); }
std::string Recorder::folder() const { return impl_->folder(); }

std::string Recorder::report_json() const try {
  return impl_->report().dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
} catch (const std::exception&) {
  return {};
}

Result<Report> Recorder::report() const { return parse_report(report_json()); }

std::string Recorder::report_text() const try { return impl_->text(); } catch (const std::exception&) {
  return {};
}

Status Recorder::finish() { return impl_->finish(); }

}  // namespace finitude
