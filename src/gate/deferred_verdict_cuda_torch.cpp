// How a step on a device is decided: how it can be vetoed, the optimizer's flag, and the verdict that arrives later.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cmath>

#include "gate/gate_cuda_torch.h"
#include "gate/gate_parts_torch.h"
#include "gate/gradients_torch.h"
#include "gate/listeners.h"
#include "gate/param_groups_torch.h"
#include "gate/stream_cuda_torch.h"
#include "gate/window_torch.h"
#include "pyhost/attributes_python.h"
#include "pyhost/gil_python.h"
#include "pyhost/is_tensor_torch.h"

namespace finitude::bindings {
namespace {

// The host may be this many steps ahead of the verdicts before it waits for one: their places in the ring are reused.
constexpr std::size_t kMostLate = 16;

using BadTensor = DeviceGate::BadTensor;

PyObject* interned(const char* text) { return PyUnicode_InternFromString(text); }

// What the optimizer has as `found_inf`, None excepted.
Object flag_of(PyObject* optimizer) {
  static PyObject* kFoundInf = interned("found_inf");
  Object value = own_attribute(optimizer, kFoundInf);
  return value.get() == Py_None ? Object() : std::move(value);
}

// A number that is not zero; a tensor is taken for one, since to look would wait for the device.
bool is_set(PyObject* value) {
  if (value == nullptr) return false;
  if (is_tensor_object(value)) return true;
  const int truth = PyObject_IsTrue(value);
  PyErr_Clear();
  return truth == 1;
}

// Every group runs the kernel that knows the flag, and each parameter with a gradient has what a first step would make.
struct Groups {
  bool fused = true, with_state = true;
};

Groups look_at_groups(OptimizerEntry& entry) {
  static PyObject *kGroups = interned("param_groups"), *kParams = interned("params"), *kFused = interned("fused"),
                  *kDifferentiable = interned("differentiable"), *kMomentum = interned("momentum"),
                  *kState = interned("state");
  Groups result;
  DeviceGate& gate = *entry.device;
  const Object groups = Object::take(PyObject_GetAttr(entry.self, kGroups));
  const Object held_state = Object::take(PyObject_GetAttr(entry.self, kState));
  PyObject* const state = held_state.get();
  if (!groups || !PyList_Check(groups.get()) || state == nullptr || !PyDict_Check(state)) result.fused = false;
  if (result.fused && (gate.state != state || gate.state_size != PyDict_Size(state))) {
    gate.state = state;
    gate.state_size = PyDict_Size(state);
    gate.has_state.clear();
  }
  const std::vector<std::uint32_t>& with_gradient = gate.parts.front().indices;  // ascending
  std::size_t at = 0;
  std::uint32_t index = 0;
  for (Py_ssize_t g = 0; result.fused && result.with_state && g < PyList_GET_SIZE(groups.get()); ++g) {
    PyObject* group = PyList_GET_ITEM(groups.get(), g);
    PyObject* params = PyDict_Check(group) ? PyDict_GetItem(group, kParams) : nullptr;
    if (params == nullptr || !PyList_Check(params) || PyDict_GetItem(group, kFused) != Py_True ||
        is_set(PyDict_GetItem(group, kDifferentiable))) {
      result.fused = false;
      break;
    }
    const bool needs_none = gate.sgd && !is_set(PyDict_GetItem(group, kMomentum));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(params); ++i, ++index) {
      if (at == with_gradient.size() || with_gradient[at] != index) continue;
      ++at;
      if (needs_none) continue;
      if (gate.has_state.size() <= index) gate.has_state.resize(index + 1);
      if (gate.has_state[index] != 0) continue;
      PyObject* of_parameter = PyDict_GetItem(state, PyList_GET_ITEM(params, i));
      bool there = of_parameter != nullptr && PyDict_Check(of_parameter) && PyDict_Size(of_parameter) > 0;
      PyObject *key, *value;
      Py_ssize_t pos = 0;
      while (there && PyDict_Next(of_parameter, &pos, &key, &value)) there = value != Py_None;
      gate.has_state[index] = there ? 1 : 0;
      result.with_state = result.with_state && there;
      if (!there) break;
    }
  }
  PyErr_Clear();
  return result;
}

// Were exactly these gradients scanned before clipping rewrote them, and nothing else wrote to them?
bool clip_saw_all(OptimizerEntry& entry) {
  DeviceGate& gate = *entry.device;
  if (gate.seen.empty() || gate.cpu_gradients || gate.unfit) return false;
  std::uint32_t same = 0;
  bool ok = true;
  for_each_parameter(entry.self, [&](std::uint32_t index, PyObject* p) {
    const at::Tensor* gradient = gradient_of(p);
    if (gradient == nullptr) return;
    const c10::TensorImpl* impl = gradient->unsafeGetTensorImpl();
    ok = ok && index < gate.seen.size() && gate.seen[index].grad == impl &&
         gate.seen[index].version == version_of(*impl);
    ++same;
  });
  return ok && same == gate.taken;
}

std::uint32_t devices_in_use(const DeviceGate& gate) {
  return static_cast<std::uint32_t>(std::count_if(gate.parts.begin(), gate.parts.end(),
                                                  [](const DeviceGate::Part& p) { return !p.tensors.empty(); }));
}

// Waits without the GIL: a data loader's thread that pins memory has work meanwhile. Scans are copied, since any code
// may run until the GIL is taken again; the caller holds the DeviceGate.
void wait_without_gil(DeviceGate& gate) {
  struct Scan {
    c10::Device device;
    finitude_cuda_list* list;
    std::uint64_t ticket;
  };
  std::vector<Scan> scans;
  for (const DeviceGate::Part& part : gate.parts) {
    if (!part.tensors.empty()) scans.push_back({part.device, part.list, part.ticket});
  }
  const OthersRun while_it_waits;
  for (const Scan& scan : scans) {
    finitude_cuda_summary unused{};
    const OnDevice on(scan.device);
    device_settings().api.wait(scan.list, scan.ticket, &unused);
  }
}

// The host waits for the device, and everything is as it would be on the CPU. `flag`: another's, read with the
// gradients.
void wait_for_verdict(OptimizerEntry& entry, WindowVerdict* verdict, bool from_clip, const ValueRead& flag) {
  const std::shared_ptr<DeviceGate> kept = entry.device;
  DeviceGate& gate = *kept;
  const DeviceApi& api = device_settings().api;
  wait_without_gil(gate);
  bool norm_not_finite = false;
  for (DeviceGate::Part& part : gate.parts) {
    if (part.tensors.empty()) continue;
    finitude_cuda_summary summary{};
    const OnDevice on(part.device);
    if (api.wait(part.list, part.ticket, &summary) != FINITUDE_CUDA_OK) {
      device_failed(gate, part.list);
      continue;
    }
    for (const std::uint32_t index : part.indices) entry.marks[index].state = GradMark::kClean;
    for (const BadTensor& bad : bad_tensors({part.device, part.list, part.ticket, part.indices, false}, summary)) {
      entry.marks[bad.index].state = bad.health.nan != 0 ? GradMark::kNaN : GradMark::kInfinite;
    }
    norm_not_finite = norm_not_finite || (from_clip && gate.norm_on == part.device && summary.skipped == 0);
    verdict->bad_gradients += summary.bad_tensors;
    verdict->grad_absmax = std::max(verdict->grad_absmax, summary.absmax);
  }
  gate.absmax = verdict->grad_absmax;
  entry.norm_overflow = entry.norm_overflow || (norm_not_finite && verdict->bad_gradients == 0);
  resolve_losses(entry, true);
  finitude_cuda_summary summary{};
  verdict->scaler_skip =
      flag.list != nullptr && api.wait(flag.list, flag.ticket, &summary) == FINITUDE_CUDA_OK && summary.value > 0;
}

std::size_t gated_optimizers() {
  std::size_t n = 0;
  for (const auto& entry : live().optimizers) n += entry->device != nullptr && is_alive(*entry);
  return n;
}

// The allocator gives the flag's memory away only when the streams that use it have passed.
void note_stream(DeviceGate& gate) {
  const c10::Device device = gate.flag.device();
  if (device.is_cpu()) return;
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  if (stream.id() == gate.flag_stream) return;
  gate.flag_stream = stream.id();
  gate.flag.record_stream(stream);
}

// True: the verdict comes later. The scan is launched before the optimizer's kernel, in the same stream.
bool decide_step(OptimizerEntry& entry, WindowVerdict* verdict, bool may_be_late) {
  DeviceGate& gate = *entry.device;
  const DeviceApi& api = device_settings().api;
  if (gate.unfit && device_settings().trouble.empty()) {
    device_settings().trouble = "gradients on the GPU whose memory has gaps, or that are Python subclasses";
  }
  if (gate.taken == 0) {
    take_flag_off(entry);
    resolve_losses(entry, false);
    return false;
  }
  const Object there = flag_of(entry.self);
  decide::DeviceStep facts;
  facts.can_scan = gate.in_order;
  facts.capturing = is_device_capturing(gate);
  facts.wants_answer = !may_be_late;
  facts.vetoes = device_settings().policy != decide::Policy::kWarn;
  facts.devices = devices_in_use(gate);
  facts.has_cpu_gradients = gate.cpu_gradients;
  if (gate.takes_flag && gate.flag.defined() && gate.parts.size() == 1 && may_be_late && facts.vetoes &&
      facts.can_scan) {
    const Groups groups = look_at_groups(entry);
    facts.kernel_takes_flag = groups.fused;
    facts.every_state_exists = groups.with_state;
  }
  float* flag = gate.flag.defined() ? static_cast<float*>(gate.flag.data_ptr()) : nullptr;
  at::Tensor foreign;
  if (there && there.get() != gate.flag_object.get()) {
    facts.has_foreign_flag = true;
    if (is_tensor_object(there.get())) {
      const at::Tensor& t = foreign = THPVariable_Unpack(there.get());
      facts.foreign_flag_fits =
          t.dim() == 0 && t.scalar_type() == at::kFloat && t.device() == gate.parts.front().device;
      if (facts.foreign_flag_fits) flag = static_cast<float*>(t.data_ptr());
    }
  }
  const decide::Way way = decide::choose_way(facts);
  if (way != decide::Way::kFlag || facts.has_foreign_flag) take_flag_off(entry);
  if (way == decide::Way::kOut) {
    resolve_losses(entry, false);
    verdict->unknown = true;
    return false;
  }
  const bool joint = way == decide::Way::kFlag && facts.has_foreign_flag;
  const bool counted =
      way == decide::Way::kFlag && decide::counts_loss(device_settings().policy) && gated_optimizers() == 1;
  const bool from_clip = !joint && clip_saw_all(entry);
  for (DeviceGate::Part& part : gate.parts) {
    if (part.tensors.empty()) continue;
    if (from_clip) {
      const OnDevice on(part.device);
      float* const to = way == decide::Way::kFlag ? flag : nullptr;
      if (api.found_inf(part.list, current_stream(part.device), to, 0, counted ? 1 : 0) == FINITUDE_CUDA_OK) continue;
      device_failed(gate, part.list);
    } else {
      finitude_cuda_options options{};
      if (way == decide::Way::kFlag) options.found_inf = flag;
      options.keep_larger = joint ? 1 : 0;
      options.count_noted = counted ? 1 : 0;
      options.clear_noted = 1;
      if (scan_part(gate, part, options)) continue;
    }
    take_flag_off(entry);
    verdict->unknown = true;
    return false;
  }
  if (!from_clip) live().counters.gradients_scanned += gate.taken;
  prepare_stream(entry);
  // A GradScaler's flag that our flag is not joined to: distinguishes an overflow of the scale from a bad gradient.
  const ValueRead flag_read = foreign.defined() && !joint ? read_flag(gate, foreign) : ValueRead();
  gate.seen.clear();
  if (way == decide::Way::kWait) {
    wait_for_verdict(entry, verdict, from_clip, flag_read);
    return false;
  }
  if (way == decide::Way::kFlag && !joint && there.get() != gate.flag_object.get()) {
    if (PyObject_SetAttrString(entry.self, "found_inf", gate.flag_object.get()) !=
        0) {  // an optimizer that takes no attributes
      PyErr_Clear();
      wait_for_verdict(entry, verdict, from_clip, flag_read);
      return false;
    }
  }
  gate.flag_is_set = way == decide::Way::kFlag && !joint;
  if (gate.flag_is_set) note_stream(gate);
  DeviceGate::Late late;
  late.step = entry.step;
  late.lr = entry.lr;
  late.way = way;
  late.loss_counted = counted;
  late.foreign_flag = joint;
  late.flag_list = flag_read.list;
  late.flag_ticket = flag_read.ticket;
  for (const DeviceGate::Part& part : gate.parts) {
    if (part.tensors.empty()) continue;
    late.scans.push_back({part.device, part.list, part.ticket, part.indices, from_clip && gate.norm_on == part.device});
  }
  for (LossNote& note : live().losses) {
    if (!note.device.pending || note.serial <= entry.window_start || note.in_closure) continue;
    for (std::uint32_t i = 0; i < note.device.count; ++i) {
      if (note.device.of[i].entry == &entry) late.losses.push_back({note.device.of[i].number, note.micro_batch});
    }
    note.device.pending = false;  // the first step of a window answers for its losses
  }
  gate.late.push_back(std::move(late));
  verdict->grad_absmax = gate.absmax;
  verdict->late = true;
  return true;
}

// Into the ring. Is there news of the step?
bool record(const OptimizerEntry& entry, const DeviceGate::Late& late, bool left_out, double loss, double absmax) {
  if (!live().ring) return false;
  const std::uint32_t flags = left_out ? record::kStepVetoed | record::kStepAlarm : record::kStepApplied;
  const auto step = push_now({late.step, entry.ordinal, flags, loss, absmax, late.lr});
  return !left_out && listeners().recorded(entry, step, false);
}

Object reported(const OptimizerEntry& entry, const DeviceGate::Late& late, const decide::LateVerdict& verdict,
                double loss, std::uint32_t micro_batch, const std::vector<BadTensor>& bad) {
  const Object gradients = Object::take(PyList_New(0));
  for (const BadTensor& b : bad) {
    const Object item =
        Object::take(Py_BuildValue("(IKK)", b.index, static_cast<unsigned long long>(b.health.nan),
                                   static_cast<unsigned long long>(b.health.pos_inf + b.health.neg_inf)));
    if (!gradients || !item || PyList_Append(gradients.get(), item.get()) != 0) return Object();
  }
  using Kind = decide::LateVerdict::Kind;
  const char* kind = verdict.kind == Kind::kAlarm        ? "alarm"
                     : verdict.kind == Kind::kScalerSkip ? "scaler-skip"
                                                         : "healthy";
  return Object::take(Py_BuildValue(
      "{s:s,s:I,s:K,s:s,s:s,s:O,s:O,s:O,s:d,s:I,s:O}", "optimizer", entry.class_name.c_str(), "ordinal", entry.ordinal,
      "step", static_cast<unsigned long long>(late.step), "kind", kind, "sink",
      decide::report_word(verdict.sink).data(), "harmless", verdict.harmless ? Py_True : Py_False, "left_out",
      verdict.left_out ? Py_True : Py_False, "norm_overflow", verdict.norm_overflow ? Py_True : Py_False, "loss", loss,
      "micro_batch", micro_batch, "gradients", gradients.get()));
}

}  // namespace

void take_flag_off(OptimizerEntry& entry) noexcept {
  DeviceGate& gate = *entry.device;
  if (!gate.flag_is_set) return;
  gate.flag_is_set = false;
  if (flag_of(entry.self).get() == gate.flag_object.get() && PyObject_DelAttrString(entry.self, "found_inf") != 0)
    PyErr_Clear();
}

bool is_device_capturing(DeviceGate& gate) {
  DeviceSettings& settings = device_settings();
  for (const DeviceGate::Part& part : gate.parts) {
    const int device = part.device.has_index() ? part.device.index() : 0;
    const OnDevice on(part.device);
    if (settings.api.capturing(device, current_stream(part.device)) == 0) continue;
    if (!settings.captures_reported && settings.trouble.empty())
      settings.trouble = "steps captured into a CUDA graph, and their replays";
    settings.captures_reported = true;
    return true;
  }
  return false;
}

bool settle_device(OptimizerEntry& entry, WindowVerdict* verdict, bool may_be_late) {
  try {
    return decide_step(entry, verdict, may_be_late);
  } catch (const std::exception& e) {
    entry.device->in_order = false;
    take_flag_off(entry);
    verdict->unknown = true;
    if (device_settings().trouble.empty()) device_settings().trouble = std::string("gradients on the GPU: ") + e.what();
    return false;
  }
}

bool report_all_late() {
  for (std::size_t i = 0; i < live().optimizers.size(); ++i) {  // optimizers that are gone too
    OptimizerEntry& entry = *live().optimizers[i];
    if (entry.device && !report_late(entry, false)) return false;
  }
  return true;
}

// In the order of the steps. Each is popped before Python is called, which may end the watch or call this.
bool report_late(OptimizerEntry& entry, bool wait) {
  const std::shared_ptr<DeviceGate> kept = entry.device;  // what is called below may end the watching
  DeviceGate& gate = *kept;
  const DeviceApi& api = device_settings().api;
  while (!gate.late.empty()) {
    const DeviceGate::Late& front = gate.late.front();
    const auto read = wait || gate.late.size() > kMostLate ? api.wait : api.poll;
    decide::LateFacts facts;
    facts.way = front.way;
    facts.loss_counted = front.loss_counted;
    std::vector<BadTensor> bad;
    double absmax = 0, loss = 0;
    bool noted_bad = false;
    std::uint32_t micro_batch = 0;
    for (const DeviceGate::Late::Scan& scan : front.scans) {
      finitude_cuda_summary summary = scan.summary;
      const OnDevice on(scan.device);
      const int status = scan.known ? FINITUDE_CUDA_OK : read(scan.list, scan.ticket, &summary);
      if (status == FINITUDE_CUDA_NOT_READY) return true;
      if (status != FINITUDE_CUDA_OK) {
        device_failed(gate, scan.list);
        continue;
      }
      facts.bad_tensors += summary.bad_tensors;
      facts.foreign_flag = facts.foreign_flag || (front.foreign_flag && summary.found_inf_before > 0);
      noted_bad = noted_bad || summary.noted_bad != 0;
      facts.norm_not_finite = facts.norm_not_finite || (scan.by_norm && summary.skipped == 0);
      absmax = std::max(absmax, summary.absmax);
      for (const BadTensor& b : bad_tensors(scan, summary)) bad.push_back(b);
    }
    for (const DeviceGate::Late::Loss& l : front.losses) {
      finitude_cuda_summary summary{};
      const bool known = api.poll(front.scans.front().list, l.ticket, &summary) == FINITUDE_CUDA_OK;
      const bool is_bad = known ? summary.bad_tensors != 0 : noted_bad;
      if (!facts.loss_bad) {
        loss = known ? summary.value : is_bad ? NAN : 0;
        micro_batch = l.micro_batch;
      }
      facts.loss_bad = facts.loss_bad || is_bad;
    }
    finitude_cuda_summary flag{};
    const int flag_status =
        front.flag_list != nullptr ? read(front.flag_list, front.flag_ticket, &flag) : FINITUDE_CUDA_OK;
    if (flag_status == FINITUDE_CUDA_NOT_READY) return true;
    facts.foreign_flag =
        facts.foreign_flag || front.foreign_is_set || (flag_status == FINITUDE_CUDA_OK && flag.value > 0);
    const decide::LateVerdict verdict = decide::judge_late(facts);
    const DeviceGate::Late late = front;
    gate.late.pop_front();
    gate.absmax = absmax;
    using Kind = decide::LateVerdict::Kind;
    if (verdict.kind == Kind::kScalerSkip) {  // it was counted as a step when it was let through
      ++live().counters.scaler_skips;
      --live().counters.steps;
      --entry.step;
      for (DeviceGate::Late& later : gate.late) --later.step;
    } else {
      if (record(entry, late, verdict.left_out, loss, absmax) && !listeners().reports_news(entry)) return false;
      live().counters.vetoes += verdict.left_out;
    }
    if (verdict.kind == Kind::kHealthy && !verdict.norm_overflow) continue;
    const Object info = reported(entry, late, verdict, loss, micro_batch, bad);
    if (!info) {
      PyErr_Clear();
      continue;
    }
    ++live().counters.python_calls;
    const Object optimizer = Object::share(is_alive(entry) ? entry.self : Py_None);
    if (!Object::take(PyObject_CallMethod(live().cold.get(), "on_late", "(OO)", optimizer.get(), info.get())))
      return false;
    if (!is_known(entry)) return true;  // freed by what was called
  }
  return true;
}

}  // namespace finitude::bindings
