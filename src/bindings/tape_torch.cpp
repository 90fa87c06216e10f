#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <utility>

#include "bindings/fs_path_python.h"
#include "bindings/tape_python.h"
#include "capture/tape_file.h"
#include "cli/replay/replay_command_torch.h"
#include "gate/state_torch.h"
#include "observe/tape_recorder_torch.h"
#include "pyhost/is_tensor_torch.h"
#include "pyhost/places_torch.h"
#include "pyhost/tensor_subclass_torch.h"
#include "replay/tape_player.h"
#include "standby/bound_template_torch.h"
#include "standby/open_tape_torch.h"
#include "standby/tape_level_torch.h"

namespace finitude::bindings {
namespace {

namespace py = pybind11;

capture::Tape parsed(const std::string& bytes) {
  capture::Tape tape;
  if (const Status status = capture::read_tape(bytes, &tape); !status.ok())
    throw py::value_error("the tape " + status.why());
  return tape;
}

// As if the step had been recorded on that device: all memory of it but what has one of these kinds, what `device`
// arguments name, and its default generator. For tests of replays of what no machine at hand can record.
void move_to(capture::Tape& tape, const std::string& device, const std::vector<std::string>& kinds_that_stay) {
  if (!capture::is_device_name(device)) throw py::value_error("no name of a device: " + device);
  tape.devices.push_back(device);
  const auto number = static_cast<std::uint8_t>(tape.devices.size() - 1);
  for (capture::Storage& storage : tape.storages) {
    if (std::find(kinds_that_stay.begin(), kinds_that_stay.end(), storage.kind) == kinds_that_stay.end())
      storage.device = number;
  }
  const auto rename = [&](auto& self, std::vector<capture::Value>& values) -> void {
    for (capture::Value& value : values) {
      if (value.kind == capture::Value::kDevice && value.text == "cpu") value.text = device;
      self(self, value.items);
    }
  };
  for (capture::Entry& entry : tape.entries) rename(rename, entry.args);
}

py::dict played_dict(const replay::Played& played) {
  py::list outcomes;
  for (const auto& o : played.outcomes) outcomes.append(py::make_tuple(o.kind, o.name, o.same()));
  py::dict d;
  d["identical"] = played.identical();
  d["why_not"] = played.why_not;
  d["missing"] = played.missing;
  d["calls"] = played.calls;
  d["seconds"] = played.seconds;
  d["as_recorded"] = played.as_recorded;
  d["otherwise"] = played.otherwise;
  d["outcomes"] = outcomes;
  return d;
}

py::dict tensors_dict(const std::vector<replay::NamedTensor>& tensors) {
  py::dict d;
  for (const auto& t : tensors) d[py::str(t.name)] = py::reinterpret_steal<py::object>(THPVariable_Wrap(t.tensor));
  return d;
}

// The command `finitude replay` with these words: (exit code, stdout, stderr, what --stop-at or --break came to: None
// or the inputs and the outputs of that call). groups: not None where all ranks play at once; by the name of a process
// group on the tape the name of that of this process which takes its place. limit_s: how long other ranks are waited
// for.
py::tuple replay_command(const std::vector<FsPath>& given,
                         const std::optional<std::map<std::string, std::string>>& groups, int limit_s) {
  std::vector<std::string> words;
  for (const FsPath& word : given) words.push_back(word.bytes);
  cli::ReplayOptions options;
  std::string out, err, why = cli::parse_replay(words, &options);
  if (words == std::vector<std::string>{"--help"})
    return py::make_tuple(0, cli::replay_usage("finitude replay"), "", py::none());
  if (!why.empty()) {
    return py::make_tuple(2, "", lenient_text(why + "\n(finitude replay --help shows the options)\n"), py::none());
  }
  if (groups) {
    options.play.together = replay::Together{*groups, limit_s};
    options.play.device = "cpu";
  }
  cli::StoppedCall stopped;
  int code = 0;
  {
    const py::gil_scoped_release release;
    const auto to = [](std::string* text) { return [text](std::string_view more) { *text += more; }; };
    code = cli::run_replay(options, to(&out), to(&err), &stopped);
  }
  if (!stopped.stopped) return py::make_tuple(code, lenient_text(out), lenient_text(err), py::none());
  return py::make_tuple(code, lenient_text(out), lenient_text(err),
                        py::make_tuple(tensors_dict(stopped.inputs), tensors_dict(stopped.outputs)));
}

}  // namespace

replay::LineText line_text(const py::object& line_of) {
  if (line_of.is_none()) return nullptr;
  return [&line_of](const std::string& file, std::uint32_t line) {
    const py::gil_scoped_acquire gil;
    return line_of(file, line).cast<std::string>();
  };
}

py::list inputs_of(const capture::Tape& tape) {
  py::list list;
  for (const auto& storage : tape.storages) {
    if (storage.origin == capture::Storage::kInput)
      list.append(py::make_tuple(storage.kind, storage.name, py::bytes(storage.bytes)));
  }
  for (const auto& entry : tape.entries) {
    if (entry.kind == capture::Entry::kFill) list.append(py::make_tuple("filled", "", py::bytes(entry.bytes)));
  }
  return list;
}

void define_tape(py::module_& m) {
  define_capsules(m);
  using observe::TapeRecorder;
  m.def(
      "tape_start",
      [](std::size_t max_bytes) {
        drop_tape_in_hand();
        if (TapeRecorder::get().on()) tape_level_rests();
        TapeRecorder::get().start(max_bytes, &places());
      },
      py::arg("max_bytes") = std::size_t{2} << 30);
  m.def("tape_stop", [] {
    live().trace_first = false;  // the tape of a first step is kept from here on
    TapeRecorder::get().stop();
  });
  m.def("tape_seal", [] { TapeRecorder::get().seal(); });
  m.def("tape_clear", [] {
    TapeRecorder::get().stop();
    TapeRecorder::get().clear();
    drop_tape_in_hand();
    put_template_down();
  });
  m.def("tape_on", [] { return TapeRecorder::get().on(); });
  m.def("tape_name", [](py::handle t, const std::string& kind, const std::string& name) {
    if (!is_tensor_object(t.ptr())) return;
    const at::Tensor& local = local_of(THPVariable_Unpack(t.ptr()));
    if (TemplateInHand* const hand = template_in_hand())
      hand->name_on_tape(local, kind, name);
    else
      TapeRecorder::get().name_storage(*local.unsafeGetTensorImpl(), kind, name);
  });
  // What a replay has to come to. False: the tape does not touch this tensor.
  m.def("tape_outcome", [](const std::string& kind, const std::string& name, py::handle t) {
    if (!is_tensor_object(t.ptr())) return false;
    const at::Tensor& local = local_of(THPVariable_Unpack(t.ptr()));
    if (TemplateInHand* const hand = template_in_hand()) return hand->add_outcome(kind, name, local);
    return TapeRecorder::get().add_outcome(kind, name, local);
  });
  // The tape as the bytes of its file. Ends the recording.
  m.def(
      "tape_take",
      [](const py::object& line_of) {
        std::string bytes;
        {
          const replay::LineText text = line_text(line_of);
          const py::gil_scoped_release release;
          capture::Tape tape = take_tape();
          replay::report_sources(tape, text);
          bytes = capture::write_tape(tape);
        }
        return py::bytes(bytes);
      },
      py::arg("line_of") = py::none());
  m.def(
      "tape_play",
      [](const std::string& bytes, const std::vector<std::string>& namespaces, int threads, const std::string& device) {
        const capture::Tape tape = parsed(bytes);
        replay::Played played;
        {
          const py::gil_scoped_release release;
          played = replay::play(tape, {namespaces, threads, "", false, device});
        }
        return played_dict(played);
      },
      py::arg("tape"), py::arg("namespaces"), py::arg("threads"), py::arg("device") = "");
  m.def("tape_moved",
        [](const std::string& bytes, const std::string& device, const std::vector<std::string>& kinds_that_stay) {
          capture::Tape tape = parsed(bytes);
          move_to(tape, device, kinds_that_stay);
          return py::bytes(capture::write_tape(tape));
        });
  // The same of a capsule, into a new folder: "" or why not.
  m.def("capsule_moved", [](const std::string& folder, const std::string& to, const std::string& device) {
    nlohmann::json about;
    capture::Tape tape;
    if (const Status status = capture::read_capsule(folder, &about, &tape); !status.ok()) return status.why();
    move_to(tape, device, {});
    return capture::write_capsule(to, std::move(tape), std::move(about), {}).why();
  });
  // The recorder begins with the tracer, at the step that arm_at names.
  m.def("tape_when_armed", [](std::size_t max_bytes) { live().tape_when_armed = max_bytes; });
  // Does the step on the tape at hand read this tensor?
  m.def("tape_reads", [](py::handle t) {
    if (!is_tensor_object(t.ptr())) return false;
    const at::Tensor& local = local_of(THPVariable_Unpack(t.ptr()));
    if (const TemplateInHand* const hand = template_in_hand()) return hand->reads(local);
    return TapeRecorder::get().reads(*local.unsafeGetTensorImpl());
  });
  m.def("tape_inputs", [](const std::string& bytes) { return inputs_of(parsed(bytes)); });
  m.def("replay_command", &replay_command, py::arg("words"), py::arg("groups") = py::none(), py::arg("limit_s") = 60);
  m.def("tape_about", [](const std::string& bytes) {
    const capture::Tape tape = parsed(bytes);
    std::size_t calls = 0, input_bytes = 0, inputs = 0;
    for (const auto& e : tape.entries) calls += e.kind == capture::Entry::kCall;
    for (const auto& s : tape.storages) {
      input_bytes += s.bytes.size();
      inputs += s.origin != capture::Storage::kProduced;
    }
    py::dict d;
    d["calls"] = calls;
    d["storages"] = tape.storages.size();
    d["inputs"] = inputs;
    d["input_bytes"] = input_bytes;
    d["outcomes"] = tape.outcomes.size();
    d["devices"] = tape.devices;
    py::list homes;
    for (const auto& home : tape.generators) homes.append(py::make_tuple(tape.devices[home.device], home.is_default));
    d["generators"] = homes;
    py::list where;  // of each storage: (kind, name, device)
    for (const auto& s : tape.storages) where.append(py::make_tuple(s.kind, s.name, tape.devices[s.device]));
    d["where"] = where;
    std::size_t fills = 0;
    for (const auto& e : tape.entries) fills += e.kind == capture::Entry::kFill;
    d["fills"] = fills;
    d["gaps"] = tape.gaps;
    py::list lines;  // of each call: (operator, file, line, text, is of a backward node)
    for (const auto& e : tape.entries) {
      if (e.kind != capture::Entry::kCall) continue;
      const std::string& name = tape.operators[e.number].name;
      if (e.place >= tape.places.size()) {
        lines.append(py::make_tuple(name, "", 0, "", false));
      } else {
        const auto& place = tape.places[e.place];
        lines.append(py::make_tuple(name, place.file, place.line, place.source, e.of_backward));
      }
    }
    d["lines"] = lines;
    d["settings"] = tape.settings;
    return d;
  });
}

}  // namespace finitude::bindings
