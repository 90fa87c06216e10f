// The tape at hand as a capsule, at once or beside the program, and capsules that are read.
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include <utility>

#include "bindings/tape_python.h"
#include "capture/capsule_folder_posix.h"
#include "capture/capsule_queue_posix.h"
#include "pyhost/is_tensor_torch.h"
#include "replay/keep_tape_torch.h"
#include "standby/open_tape_torch.h"

namespace finitude::bindings {
namespace {

namespace py = pybind11;

// [(name, word of safetensors for its dtype, tensor, contiguous and on the CPU)] -> tensors of a file; they point into
// those.
std::vector<capture::NamedTensor> start_tensors(const py::list& list) {
  std::vector<capture::NamedTensor> tensors;
  for (const py::handle& item : list) {
    const auto entry = item.cast<py::tuple>();
    if (!is_tensor_object(entry[2].ptr())) throw py::type_error("not a tensor");
    const at::Tensor& t = THPVariable_Unpack(entry[2].ptr());
    if (!t.device().is_cpu() || !t.is_contiguous()) throw py::value_error("not contiguous on the CPU");
    tensors.push_back({entry[0].cast<std::string>(),
                       entry[1].cast<std::string>(),
                       t.sizes().vec(),
                       {static_cast<const char*>(t.const_data_ptr()), t.nbytes()}});
  }
  return tensors;
}

nlohmann::json about_of(const std::string& text) {
  nlohmann::json about = nlohmann::json::parse(text, nullptr, false);
  if (!about.is_object()) throw py::value_error("not a JSON object");
  return about;
}

// The tape at hand as a capsule. Ends the recording. start: see start_tensors. (why not, how a replay came out).
py::tuple capsule_write(const std::string& folder, const std::string& about_text, std::uint64_t max_bytes, bool redact,
                        std::uint64_t replay_below, const py::object& line_of, const py::list& start) {
  std::vector<capture::NamedTensor> held = start_tensors(start);
  nlohmann::json about = about_of(about_text);
  replay::Kept kept;
  {
    const replay::LineText text = line_text(line_of);
    const py::gil_scoped_release release;
    try {
      kept = replay::keep_tape(take_tape(), folder, std::move(about), {max_bytes, redact}, replay_below, text,
                               std::move(held));
    } catch (const std::exception& e) {
      kept.why_not = e.what();
    }
  }
  return py::make_tuple(kept.why_not, kept.replayed);
}

// The same beside the program: waits until the bytes of the step are copied. Why nothing is written, or "". What comes
// of it is reported by capsules_done. Raises what a handler of a signal raises while it waits, as Ctrl-C does; then
// nothing is written.
std::string capsule_write_beside(const std::string& folder, const std::string& about_text, std::uint64_t max_bytes,
                                 bool redact, std::uint64_t replay_below, const py::object& line_of,
                                 const py::list& start, const std::string& player, const std::string& runs,
                                 std::uint32_t keep) {
  std::vector<capture::NamedTensor> held = start_tensors(start);
  nlohmann::json about = about_of(about_text);
  const replay::LineText text = line_text(line_of);
  bool interrupted = false;
  replay::KeptBeside beside{folder, player, runs, keep, false, {}};
  beside.interrupted = [&] {
    const py::gil_scoped_acquire gil;
    return interrupted = PyErr_CheckSignals() != 0;  // what its handler raised is kept for the end
  };
  std::string why;
  {
    const py::gil_scoped_release release;
    try {
      why = replay::keep_tape_beside(take_tape(), beside, std::move(about), {max_bytes, redact}, replay_below, text,
                                     std::move(held));
    } catch (const std::exception& e) {
      why = e.what();
    }
  }
  if (interrupted) throw py::error_already_set();
  return why;
}

// [(folder, the name that it has now, or "": it is removed)]
py::list reported(const std::vector<capture::LeftBehind>& left) {
  py::list list;
  for (const capture::LeftBehind& one : left) list.append(py::make_tuple(one.folder, one.kept_as));
  return list;
}

py::list settle_left_behind(const std::string& runs) {
  std::vector<capture::LeftBehind> left;
  {
    const py::gil_scoped_release release;
    left = capture::settle_left_behind(runs, capture::is_whole_capsule);
  }
  return reported(left);
}

py::list capsules_done() {
  py::list list;
  for (const capture::CapsuleDone& done : capture::CapsuleQueue::get().take_done()) {
    py::dict d;
    d["folder"] = done.folder;
    d["why_not"] = done.why_not;
    d["replayed"] = done.replayed;
    d["bytes"] = done.times.bytes;
    d["write_seconds"] = done.times.write;
    d["check_seconds"] = done.times.check;
    d["replay_seconds"] = done.replay_seconds;
    d["left_behind"] = reported(done.left_behind);
    list.append(std::move(d));
  }
  return list;
}

}  // namespace

void define_capsules(py::module_& m) {
  m.def("capsule_write", &capsule_write, py::arg("folder"), py::arg("about"), py::arg("max_bytes"), py::arg("redact"),
        py::arg("replay_below"), py::arg("line_of"), py::arg("start") = py::list());
  m.def("capsule_write_beside", &capsule_write_beside, py::arg("folder"), py::arg("about"), py::arg("max_bytes"),
        py::arg("redact"), py::arg("replay_below"), py::arg("line_of"), py::arg("start") = py::list(),
        py::arg("player") = "", py::arg("runs") = "", py::arg("keep") = 0);
  // What has come of them since it was asked last.
  m.def("capsules_done", &capsules_done);
  // At most so long. True: none is under way any more.
  m.def(
      "capsules_wait", [](double seconds) { return capture::CapsuleQueue::get().wait(seconds); },
      py::call_guard<py::gil_scoped_release>());
  m.def("capsules_give_up", [] { capture::CapsuleQueue::get().give_up(); });
  m.def("capsules_keep_newest", &capture::keep_newest, py::call_guard<py::gil_scoped_release>());
  m.def("capsules_settle_left_behind", &settle_left_behind);
  // (why not, capsule.json, {name: bytes of the tensor}, inputs of its tape as tape_inputs has them)
  m.def("capsule_read", [](const std::string& folder) -> py::tuple {
    nlohmann::json about;
    capture::Tape tape;
    capture::TensorBytes start;
    const Status status = capture::read_capsule(folder, &about, &tape, &start);
    py::dict tensors;
    if (!status.ok()) return py::make_tuple(status.why(), "", tensors, py::list());
    for (const auto& [name, content] : start) tensors[py::str(name)] = py::bytes(content);
    return py::make_tuple("", about.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace), tensors,
                          inputs_of(tape));
  });
}

}  // namespace finitude::bindings
