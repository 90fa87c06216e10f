// The part of the gate that calls libfinitude_cuda: one list per optimizer and device. GIL held throughout. In a
// healthy step no call of the library waits, except make_room if the host is far ahead of the device.
#include "gate/gate_cuda_torch.h"

#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "gate/device_library_posix.h"
#include "gate/gate_parts_torch.h"
#include "gate/gradients_torch.h"
#include "gate/param_groups_torch.h"
#include "gate/stream_cuda_torch.h"
#include "observe/device_memory_torch.h"
#include "observe/tensor_view_torch.h"
#include "pyhost/is_tensor_torch.h"

namespace finitude::bindings {

// Never freed: threads of the engine may read it while the process ends.
DeviceSettings& device_settings() {
  static auto* settings = new DeviceSettings();
  return *settings;
}

namespace {

// The list of the optimizer on this device; makes it at first use, which allocates on the device. The pointer is valid
// until another part is added. Null: the library has failed.
DeviceGate::Part* part_on(DeviceGate& gate, c10::Device device) {
  for (DeviceGate::Part& part : gate.parts) {
    if (part.device == device) return &part;
  }
  DeviceGate::Part part;
  part.device = device;
  const OnDevice on(device);
  const int status = device_settings().api.open(device.has_index() ? device.index() : 0, &part.list);
  if (status != FINITUDE_CUDA_OK) {
    device_failed(gate, nullptr);
    return nullptr;
  }
  gate.parts.push_back(std::move(part));
  return &gate.parts.back();
}

bool is_capturing(const c10::Device& device) {
  const DeviceSettings& settings = device_settings();
  if (device.type() != settings.type) return false;
  const OnDevice on(device);
  return settings.api.capturing(device.has_index() ? device.index() : 0, current_stream(device)) != 0;
}

DeviceGate::Seen seen_of(const at::Tensor& gradient) {
  return {gradient.unsafeGetTensorImpl(), version_of(*gradient.unsafeGetTensorImpl())};
}

}  // namespace

// A list keeps the summaries of its last FINITUDE_CUDA_RING tickets. If the next ticket would take the place of a
// verdict that is still needed, that one is waited for and kept here. In a healthy loop nothing is that old, and this
// compares numbers.
void make_room(DeviceGate& gate, DeviceGate::Part& part) {
  const DeviceApi& api = device_settings().api;
  const auto is_needed = [&part](std::uint64_t ticket) { return part.newest + 1 - ticket >= FINITUDE_CUDA_RING; };
  for (DeviceGate::Late& late : gate.late) {
    finitude_cuda_summary flag{};
    if (late.flag_list == part.list && is_needed(late.flag_ticket)) {
      const OnDevice on(part.device);
      late.foreign_is_set = api.wait(part.list, late.flag_ticket, &flag) == FINITUDE_CUDA_OK && flag.value > 0;
      late.flag_list = nullptr;
    }
    for (DeviceGate::Late::Scan& scan : late.scans) {
      if (scan.known || scan.list != part.list || !is_needed(scan.ticket)) continue;
      const OnDevice on(part.device);
      if (api.wait(scan.list, scan.ticket, &scan.summary) != FINITUDE_CUDA_OK) continue;
      scan.bad = bad_tensors(scan, scan.summary);
      scan.known = true;
    }
  }
}

// Waits for a copy from the device: for the rare bad step. If later scans have overwritten the results per tensor, the
// first bad index is all that is left, with the counts of the whole scan.
std::vector<DeviceGate::BadTensor> bad_tensors(const DeviceGate::Late::Scan& scan,
                                               const finitude_cuda_summary& summary) {
  if (scan.known) return scan.bad;
  std::vector<DeviceGate::BadTensor> bad;
  if (summary.bad_tensors == 0) return bad;
  std::vector<finitude_cuda_health> rows(scan.indices.size());
  const OnDevice on(scan.device);
  if (device_settings().api.fetch(scan.list, scan.ticket, rows.data(), static_cast<std::uint32_t>(rows.size())) ==
      FINITUDE_CUDA_OK) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if ((rows[i].nan | rows[i].pos_inf | rows[i].neg_inf) != 0) bad.push_back({scan.indices[i], rows[i]});
    }
  } else if (summary.first_bad < scan.indices.size()) {
    bad.push_back({scan.indices[summary.first_bad],
                   {summary.nan, summary.pos_inf, summary.neg_inf, summary.absmax, summary.sum_sq}});
  }
  return bad;
}

// Reads the found_inf of a GradScaler in stream order, without a wait: a host read would synchronize in each step.
ValueRead read_flag(DeviceGate& gate, const at::Tensor& flag) {
  ValueRead read;
  finitude_cuda_tensor memory;
  for (DeviceGate::Part& part : gate.parts) {
    if (part.device != flag.device() || flag.numel() != 1 || !stretch_of(flag, &memory)) continue;
    make_room(gate, part);
    const OnDevice on(part.device);
    if (device_settings().api.scan_value(part.list, current_stream(part.device), &memory, &read.ticket) !=
        FINITUDE_CUDA_OK)
      continue;
    part.newest = read.ticket;
    read.list = part.list;
    break;
  }
  return read;
}

// The first reason is kept for the report; training continues with the device part unwatched. `list` may be null: the
// reason of open.
void device_failed(DeviceGate& gate, const finitude_cuda_list* list) {
  gate.in_order = false;
  if (device_settings().trouble.empty()) {
    const std::string why = device_settings().api.why(list);
    device_settings().trouble = "gradients on the GPU: " + (why.empty() ? "a verdict was lost" : why);
  }
}

// Set and scan. In the steady state set is a comparison, and the scan one launch. False: the library has failed.
bool scan_part(DeviceGate& gate, DeviceGate::Part& part, const finitude_cuda_options& options) {
  const DeviceApi& api = device_settings().api;
  make_room(gate, part);
  if (options.unless_finite.data == nullptr) {  // else a finite norm says it all, and what was read ahead was of no use
    for (std::size_t i = 0; i < part.tensors.size(); ++i) {
      if (part.tensors[i].ahead != 0) gate.reader->used(part.indices[i]);
    }
  }
  const OnDevice on(part.device);
  void* stream = current_stream(part.device);
  int status = api.set(part.list, part.tensors.data(), static_cast<std::uint32_t>(part.tensors.size()), stream);
  if (status == FINITUDE_CUDA_OK) status = api.scan(part.list, stream, &options, &part.ticket);
  if (status == FINITUDE_CUDA_OK) {
    part.newest = part.ticket;
    return true;
  }
  device_failed(gate, part.list);
  return false;
}

// The reader gives up its pointer to the list before the list is closed: threads of the engine may still hold the
// reader. close() waits for the device, so nothing reads the tensors after it.
DeviceGate::~DeviceGate() {
  if (reader) reader->retire();
  for (Part& part : parts) {
    const OnDevice on(part.device);
    device_settings().api.close(part.list);
  }
}

// Vectors keep their capacity: a walk allocates nothing once they have grown.
void DeviceGate::begin() {
  for (Part& part : parts) {
    part.tensors.clear();
    part.indices.clear();
  }
  taken = 0;
  bytes = largest = 0;
  unfit = cpu_gradients = false;
}

// True: the gradient is on a watched device and needs no look on the CPU, also where it cannot be scanned (`unfit`).
bool DeviceGate::take(std::uint32_t index, const at::Tensor& gradient) {
  if (!is_watched_device(*gradient.unsafeGetTensorImpl())) {
    cpu_gradients = true;
    return false;
  }
  finitude_cuda_tensor tensor;
  Part* part = in_order ? part_on(*this, gradient.device()) : nullptr;
  if (part == nullptr || !stretch_of(gradient, &tensor)) {
    unfit = true;
    return true;
  }
  const std::uint64_t size = tensor.numel * gradient.itemsize();
  bytes += size;
  largest = std::max(largest, size);
  if (reader && reader->stands(index, gradient, tensor)) tensor.ahead = index + 1;
  part->tensors.push_back(tensor);
  part->indices.push_back(index);
  ++taken;
  return true;
}

// At the end of the program: how many verdicts to wait for. A device that has failed will deliver none, so it is asked
// first.
std::size_t steps_under_way() {
  std::size_t steps = 0;
  for (const auto& entry : live().optimizers) {
    if (!entry->device) continue;
    DeviceGate& gate = *entry->device;
    for (const DeviceGate::Part& part : gate.parts) {
      const OnDevice on(part.device);
      const int status =
          gate.in_order && !gate.late.empty() ? device_settings().api.query(part.list) : FINITUDE_CUDA_OK;
      if (status == FINITUDE_CUDA_DEVICE) device_failed(gate, part.list);
    }
    if (gate.in_order) steps += gate.late.size();
  }
  return steps;
}

// Loads the library once. Another device type is taken only while no optimizer uses the first one.
std::string open_device_library(const std::string& path, const std::string& device_type) {
  DeviceSettings& settings = device_settings();
  const c10::DeviceType type = c10::Device(device_type).type();
  if (settings.loaded && (settings.type == type || live().devices != 0)) return "";
  settings.type = type;
  std::string why = load_device_api(path, &settings.api);
  settings.loaded = why.empty();
  if (settings.loaded) observe::ask_whether_capturing(&is_capturing);
  return why;
}

void set_device_policy(decide::Policy policy) noexcept { device_settings().policy = policy; }

bool is_watched_device(const c10::TensorImpl& impl) noexcept {
  const DeviceSettings& settings = device_settings();
  return settings.loaded && impl.device_type() == settings.type;
}

std::string device_trouble() { return device_settings().trouble; }

void register_device(OptimizerEntry& entry, bool takes_flag, bool sgd) {
  bool any = false;
  for_each_parameter(entry.self, [&](std::uint32_t, PyObject* p) {
    if (!is_tensor_object(p)) return;
    const c10::TensorImpl& parameter = *THPVariable_Unpack(p).unsafeGetTensorImpl();
    any = any || is_watched_device(parameter);
    // A shard (DTensor): each rank would decide for itself which steps are applied, and torch refuses a plain flag
    // together with DTensors.
    takes_flag = takes_flag && !parameter.is_python_dispatch();
  });
  if (!any) return;
  if (!entry.device) {
    entry.device = std::make_shared<DeviceGate>();
    ++live().devices;
  }
  entry.device->takes_flag = takes_flag;
  entry.device->sgd = sgd;
  // The lists are opened here, outside of the steps: that allocates.
  for_each_parameter(entry.self, [&](std::uint32_t, PyObject* p) {
    if (!is_tensor_object(p) || !entry.device->in_order) return;
    const at::Tensor& parameter = THPVariable_Unpack(p);
    if (is_watched_device(*parameter.unsafeGetTensorImpl())) part_on(*entry.device, parameter.device());
  });
  if (!entry.device->in_order || entry.device->flag.defined() || !takes_flag || entry.device->parts.size() != 1) return;
  // The flag that fused kernels read, and the Python object that goes into optimizer.found_inf; both are owned by the
  // DeviceGate. Made here, since at::zeros allocates and launches a kernel.
  entry.device->flag = at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(entry.device->parts[0].device));
  entry.device->flag_object = Object::take(THPVariable_Wrap(entry.device->flag));
  if (!entry.device->flag.device().is_cpu())
    entry.device->flag_stream =
        c10::impl::VirtualGuardImpl(entry.device->flag.device().type()).getStream(entry.device->flag.device()).id();
}

// No optimizer may keep our flag: nothing clears it once the gate is off, and a flag of 1 would skip every step.
// `forget` also closes the lists, which waits for the device.
void leave_devices(bool forget) noexcept {
  Live& l = live();
  stop_streams();
  for (const auto& entry : l.optimizers) {
    if (!entry->device) continue;
    if (is_alive(*entry)) take_flag_off(*entry);
    if (!forget) continue;
    entry->device.reset();
    --l.devices;
  }
  if (forget) {
    for (LossNote& note : l.losses) note.device = DeviceTickets();
    device_settings().trouble.clear();
    device_settings().captures_reported = false;
  }
}

namespace {

// The stream that `root` was computed on. It need not be the current one, as backward waits for it by itself.
void* stream_of(const at::Tensor& root) {
  if (root.device().is_cpu()) return nullptr;
  const auto node = root.grad_fn();  // a shared or an intrusive pointer, by the version of torch
  const std::optional<c10::Stream> of_forward = node ? node->stream() : std::nullopt;
  return of_forward && of_forward->device() == root.device() ? handle_of(*of_forward) : current_stream(root.device());
}

// Scans a loss once for each optimizer on its device, since each list notes values for itself. Not while the stream is
// captured: the list would run out of captured tickets.
void scan_root(const at::Tensor& root, LossNote* note) {
  constexpr std::int64_t kMost = 65536;  // one block reads it
  finitude_cuda_tensor tensor;
  if (root.numel() > kMost || !stretch_of(root, &tensor)) return;
  for (const auto& entry : live().optimizers) {
    if (!entry->device || !entry->device->in_order || !is_alive(*entry)) continue;
    for (DeviceGate::Part& part : entry->device->parts) {
      if (part.device != root.device() || note->device.count == note->device.of.size()) continue;
      make_room(*entry->device, part);
      const OnDevice on(part.device);
      void* stream = stream_of(root);
      if (device_settings().api.capturing(root.device().has_index() ? root.device().index() : 0, stream) != 0) return;
      std::uint64_t ticket = 0;
      if (device_settings().api.scan_value(part.list, stream, &tensor, &ticket) != FINITUDE_CUDA_OK) {
        device_failed(*entry->device, part.list);
        continue;
      }
      part.newest = ticket;
      note->device.of[note->device.count++] = {entry.get(), ticket};
      note->device.pending = true;
    }
  }
}

}  // namespace

void note_device_root(const at::Tensor& root, LossNote* note) {
  try {
    scan_root(root, note);
  } catch (const std::exception&) {  // no stream to scan on: bad gradients will show it
  }
}

// Polls pinned memory, or waits. A value that has not arrived stays pending.
void resolve_losses(OptimizerEntry& entry, bool wait) {
  if (!entry.device || entry.device->parts.empty()) return;
  const DeviceApi& api = device_settings().api;
  for (LossNote& note : live().losses) {
    if (!note.device.pending || note.serial <= entry.window_start) continue;
    for (std::uint32_t i = 0; i < note.device.count; ++i) {
      if (note.device.of[i].entry != &entry) continue;
      for (DeviceGate::Part& part : entry.device->parts) {
        finitude_cuda_summary summary{};
        const auto read = wait ? api.wait : api.poll;
        const OnDevice on(part.device);
        if (read(part.list, note.device.of[i].number, &summary) != FINITUDE_CUDA_OK) continue;
        note.bad = summary.bad_tensors != 0;
        note.value = summary.value;
        note.device.pending = false;
        break;
      }
    }
  }
}

namespace {

struct Owned {
  OptimizerEntry* entry;
  std::uint32_t index;
  const at::Tensor* gradient;
};

// The gradients of these parameters that lie on a device, by optimizer and in the order of its parameters.
std::vector<Owned> owned_gradients(PyObject* parameters) {
  std::vector<Owned> found;
  const Object list = Object::take(PySequence_Fast(parameters, ""));
  for (Py_ssize_t i = 0; list && i < PySequence_Fast_GET_SIZE(list.get()); ++i) {
    PyObject* p = PySequence_Fast_GET_ITEM(list.get(), i);
    const at::Tensor* gradient = gradient_of(p);
    if (gradient == nullptr) continue;
    auto [it, last] = live().owner.equal_range(THPVariable_Unpack(p).unsafeGetTensorImpl());
    for (; it != last; ++it) {
      if (it->second.first->device) found.push_back({it->second.first, it->second.second, gradient});
    }
  }
  PyErr_Clear();
  std::sort(found.begin(), found.end(), [](const Owned& a, const Owned& b) {
    return a.entry != b.entry ? a.entry->ordinal < b.entry->ordinal : a.index < b.index;
  });
  return found;
}

// Scans the gradients of each optimizer that clipping is going to rewrite, and notes which (`seen`), so that the step
// need not scan them again. `found` is sorted by optimizer, so one walk collects them.
void scan_before_clip(const std::vector<Owned>& found, PyObject* norm) {
  std::vector<OptimizerEntry*> touched;
  for (const Owned& owned : found) {
    DeviceGate& gate = *owned.entry->device;
    if (touched.empty() || touched.back() != owned.entry) {
      touched.push_back(owned.entry);
      gate.begin();
      gate.seen.clear();
    }
    if (!gate.take(owned.index, *owned.gradient)) continue;
    if (gate.seen.size() <= owned.index) gate.seen.resize(owned.index + 1);
    gate.seen[owned.index] = seen_of(*owned.gradient);
  }
  finitude_cuda_tensor norm_memory{};
  std::optional<c10::Device> norm_device;
  if (norm != nullptr && is_tensor_object(norm)) {
    const at::Tensor& tensor = THPVariable_Unpack(norm);
    if (is_watched_device(*tensor.unsafeGetTensorImpl()) && tensor.numel() == 1 && stretch_of(tensor, &norm_memory)) {
      norm_device = tensor.device();
    }
  }
  for (OptimizerEntry* entry : touched) {
    DeviceGate& gate = *entry->device;
    bool ok = gate.in_order && !gate.unfit && !is_device_capturing(gate);
    for (DeviceGate::Part& part : gate.parts) {
      finitude_cuda_options options{};
      // Noted losses stay: the step, which may scan again, is where they count.
      if (norm_device == part.device) options.unless_finite = norm_memory;
      ok = ok && scan_part(gate, part, options);
    }
    gate.norm_on = norm_device;
    if (ok)
      live().counters.gradients_scanned += gate.taken;
    else
      gate.seen.clear();
  }
}

}  // namespace

void before_device_write(PyObject* parameters, PyObject* norm) {
  const std::vector<Owned> found = owned_gradients(parameters);
  try {
    scan_before_clip(found, norm);
  } catch (const std::exception&) {  // scanned at the step instead
    for (const Owned& owned : found) owned.entry->device->seen.clear();
  }
}

// Clipping's own write is no change: `seen` gets the versions after it.
void after_device_write(PyObject* parameters) {
  for (const Owned& owned : owned_gradients(parameters)) {
    auto& seen = owned.entry->device->seen;
    if (owned.index < seen.size() && seen[owned.index].grad == owned.gradient->unsafeGetTensorImpl()) {
      seen[owned.index] = seen_of(*owned.gradient);
    }
  }
}

}  // namespace finitude::bindings
