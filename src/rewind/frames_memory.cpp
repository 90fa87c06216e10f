// Names and value stacks of frames: remembered, compared, put back.
#include "rewind/frames_memory.h"

#include <cstring>
#include <iterator>

namespace finitude::bindings {
namespace {

// Put into names that are lost but may not be unbound (see kLocalsMayBeUnbound): any use raises. Held for good.
PyObject* raise_lost(PyObject*) {
  PyErr_SetString(PyExc_UnboundLocalError, "finitude did not keep this value for the second run of the step");
  return nullptr;
}
PyObject* lost_attribute(PyObject* self, PyObject*) { return raise_lost(self); }
int lost_truth(PyObject* self) { return raise_lost(self) == nullptr ? -1 : 0; }

PyObject* lost_value() {
  static PyObject* const object = [] {
    PyType_Slot slots[] = {{Py_tp_getattro, reinterpret_cast<void*>(lost_attribute)},
                           {Py_tp_repr, reinterpret_cast<void*>(raise_lost)},
                           {Py_tp_iter, reinterpret_cast<void*>(raise_lost)},
                           {Py_nb_bool, reinterpret_cast<void*>(lost_truth)},
                           {0, nullptr}};
    PyType_Spec spec{"finitude.lost", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT, slots};
    const Object type = Object::take(PyType_FromSpec(&spec));
    PyObject* made = type ? PyObject_New(PyObject, reinterpret_cast<PyTypeObject*>(type.get())) : nullptr;
    if (made == nullptr) PyErr_Clear();
    return made;
  }();
  return object;
}

// The variable behind a fast slot: the slot itself, or the content of the cell in it, which inner functions share.
PyObject** variable_at(RawFrame* frame, PyCodeObject* code, int index) {
  PyObject** slot = frame_fast(frame) + index;
  const bool in_cell = *slot != nullptr && fast_is_cell(code, index) && PyCell_Check(*slot);
  return in_cell ? &reinterpret_cast<PyCellObject*>(*slot)->ob_ref : slot;
}

bool is_exit_name(const char* name) {
  return name != nullptr && (std::strcmp(name, "__exit__") == 0 || std::strcmp(name, "__aexit__") == 0);
}

bool is_exit(PyObject* object, ExitMark* mark) {
  if (object == nullptr) return false;
  if (PyMethod_Check(object)) {
    PyObject* function = PyMethod_GET_FUNCTION(object);
    if (!PyFunction_Check(function)) return false;
    PyObject* name = reinterpret_cast<PyFunctionObject*>(function)->func_name;
    if (!is_exit_name(name == nullptr ? nullptr : PyUnicode_AsUTF8(name))) return false;
    mark->function = function;
    mark->manager = PyMethod_GET_SELF(object);
  } else if (PyCFunction_Check(object)) {
    const PyMethodDef* method = reinterpret_cast<PyCFunctionObject*>(object)->m_ml;
    if (method == nullptr || !is_exit_name(method->ml_name)) return false;
    mark->function = method;
    mark->manager = PyCFunction_GET_SELF(object);
  }
  if (mark->manager == nullptr) return false;
  mark->type = Py_TYPE(mark->manager);
  return true;
}

bool is_dunder(PyObject* name) {
  if (!PyUnicode_Check(name)) return false;
  const Py_ssize_t size = PyUnicode_GET_LENGTH(name);
  return size > 4 && PyUnicode_READ_CHAR(name, 0) == '_' && PyUnicode_READ_CHAR(name, 1) == '_' &&
         PyUnicode_READ_CHAR(name, size - 1) == '_' && PyUnicode_READ_CHAR(name, size - 2) == '_';
}

std::string text_of(PyObject* name) {
  if (const char* text = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : nullptr) return text;
  PyErr_Clear();
  return "?";
}

// PyTorch asks for this after a weak reference to a tensor was followed: it settles who owns the object.
void settle_owner(PyObject* object) {
  if (object == nullptr || !is_tensor(object)) return;
  if (!Object::take(PyObject_CallMethod(object, "_fix_weakref", nullptr))) PyErr_Clear();
}

// Values that remain keep what they knew from the last take; those cut off give their references to the keeper.
template <typename List>
void resize(List* list, std::size_t size, Keeper* keeper) {
  for (std::size_t i = size; i < list->size(); ++i) keeper->forget(&(*list)[i]);
  if (list->size() != size) list->resize(size);
}

}  // namespace

std::string place(const CodeInfo& info, int unit) {
  const std::size_t slash = info.file.rfind('/');
  return info.file.substr(slash == std::string::npos ? 0 : slash + 1) + ":" +
         std::to_string(PyCode_Addr2Line(info.code, unit < 0 ? 0 : unit * 2));
}

int surviving_depth(RawFrame* frame, CodeInfo* info) {
  const int known = frame_stack_depth(frame);
  if (known >= 0) return known;
  const CodeInfo::Site* site = site_at(info, frame_site(frame));
  return site == nullptr ? -1 : site->survivors;
}

std::uint64_t fingerprint(RawFrame* frame, CodeInfo* info) {
  std::uint64_t sum = 0xcbf29ce484222325ull;
  const auto mix = [&](PyObject* object) { sum = (sum ^ reinterpret_cast<std::uintptr_t>(object)) * 0x100000001b3ull; };
  for (int i = 0; i < info->fast_count; ++i) mix(*variable_at(frame, info->code, i));
  const int depth = surviving_depth(frame, info);
  for (int i = 0; i < depth; ++i) mix(frame_stack(frame)[i]);
  return sum | 1;
}

void FrameMemory::begin() {
  if (old_records_.empty()) old_records_.swap(records_);
  old_records_.insert(old_records_.end(), std::make_move_iterator(records_.begin()),
                      std::make_move_iterator(records_.end()));
  records_.clear();
  generator_states_used_ = 0;
  for (Doubt& doubt : doubts_) keeper.discard(std::move(doubt.weak));
  doubts_.clear();
  nesting_ = 0;
}

void FrameMemory::finish() {
  for (IteratorRecord& record : old_records_) drop_record(&record);
  old_records_.clear();
  for (std::size_t i = generator_states_used_; i < generator_states_.size(); ++i) forget(generator_states_[i].get());
  keeper.flush();
}

void FrameMemory::forget(FrameState* state) {
  resize(&state->fast, 0, &keeper);
  state->settled.clear();
  resize(&state->stack, 0, &keeper);
  for (NamedValue& entry : state->names) {
    keeper.discard(std::move(entry.name));
    keeper.forget(&entry.value);
  }
  state->names.clear();
  state->names_version = 0;
  state->exits.clear();
  for (Object& iterator : state->handed) keeper.discard(std::move(iterator));
  state->handed.clear();
  state->handed_at = 0;
}

void FrameMemory::forget_all() {
  begin();
  finish();
}

FrameState* FrameMemory::spare_state() {
  if (generator_states_used_ == generator_states_.size()) generator_states_.push_back(std::make_unique<FrameState>());
  return generator_states_[generator_states_used_++].get();
}

// ---- taking ----------------------------------------------------------------------------------------------

bool FrameMemory::remember(RawFrame* frame, FrameState* state, std::string* why) {
  CodeInfo* info = state->info;
  state->blocks = frame_open_blocks(frame);
  if (info->optimized) state->dict = nullptr;
  const int depth = surviving_depth(frame, info);
  if (depth < 0) {
    *why = "the bytecode of " + place(*info, state->unit) + " is not understood";
    return false;
  }
  const int count = info->fast_count;
  if (static_cast<int>(state->settled.size()) != count) {
    resize(&state->fast, count, &keeper);
    state->settled.assign(count, {});
    state->cells.resize(count);
    for (int i = 0; i < count; ++i) state->cells[i] = fast_is_cell(info->code, i);
  }
  for (int i = 0; i < count; ++i) {
    PyObject* object = frame_fast(frame)[i];
    if (object != nullptr && state->cells[i] != 0 && PyCell_Check(object)) object = PyCell_GET(object);
    if (state->settled[i].still(object)) continue;
    if (!remember_value(object, &state->fast[i], false, why)) return false;
    state->settled[i] = settled(state->fast[i]);
  }
  if (static_cast<int>(state->stack.size()) != depth) resize(&state->stack, depth, &keeper);
  state->exits.clear();
  for (int i = 0; i < depth; ++i) {
    PyObject* object = frame_stack(frame)[i];
    ExitMark mark;
    if (is_exit(object, &mark)) {
      mark.slot = static_cast<std::size_t>(i);
      state->exits.push_back(mark);
    }
    if (!remember_value(object, &state->stack[i], true, why)) return false;
  }
  return info->optimized || remember_names(frame_locals(frame), state, why);
}

bool FrameMemory::remember_names(PyObject* dict, FrameState* state, std::string* why) {
  if (dict == nullptr || !PyDict_CheckExact(dict)) {
    *why = "the names of " + place(*state->info, state->unit) + " are not in a plain dict";
    return false;
  }
  const std::uint64_t version = dict_version(dict);
  if (state->dict == dict && state->names_version == version) {
    // A module below the loop: the same objects under the same names, all of them alive since the last take.
    for (const std::uint32_t i : state->unsettled) {
      Value& value = state->names[i].value;
      if (!remember_value(value.object, &value, false, why)) return false;
    }
    return true;
  }
  state->dict = dict;
  state->names_version = 0;
  Py_ssize_t position = 0;
  PyObject *name = nullptr, *object = nullptr;
  std::size_t count = 0;
  // PyDict_Next is safe as nothing below runs Python code or drops a reference.
  while (PyDict_Next(dict, &position, &name, &object) != 0) {
    if (count == state->names.size()) state->names.emplace_back();
    NamedValue& entry = state->names[count++];
    if (entry.name.get() != name) {
      keeper.discard(std::move(entry.name));
      entry.name = Object::share(name);
    }
    if (entry.settled.still(object)) continue;
    if (!remember_value(object, &entry.value, false, why)) return false;
    entry.settled = settled(entry.value);
  }
  for (std::size_t i = count; i < state->names.size(); ++i) {
    keeper.discard(std::move(state->names[i].name));
    keeper.forget(&state->names[i].value);
  }
  state->names.resize(count);
  state->unsettled.clear();
  for (std::uint32_t i = 0; i < count; ++i) {
    if (state->names[i].settled.proof == nullptr) state->unsettled.push_back(i);
  }
  state->names_version = version;
  return true;
}

bool FrameMemory::remember_value(PyObject* object, Value* value, bool on_stack, std::string* why) {
  if (value->iterator == -1 && Keeper::unchanged(object, value)) return true;
  bool doubtful = false;
  if (object != nullptr) {
    const TypeInfo type = type_info(Py_TYPE(object));
    if (type.layout >= 0 || type.generator || type.external || (on_stack && type.iterates)) {
      const bool ended = type.generator && generator_state(object) == GeneratorState::kFinished;
      std::string reason;
      const int index = ended && !on_stack ? -1 : remember_iterator(object, &reason);
      if (index < 0 && on_stack) {
        *why = std::move(reason);
        return false;
      }
      if (index >= 0) {
        keeper.forget(value);
        value->object = object;
        value->held = Held::kIterator;
        value->iterator = index;
        return true;
      }
      if (type.generator && !ended) {
        Object weak = Object::take(PyWeakref_NewRef(object, nullptr));
        RawFrame* frame = generator_frame(object);
        if (!weak)
          PyErr_Clear();
        else
          doubts_.push_back(
              {std::move(weak), fingerprint(frame, code_info(frame_code(frame))) + frame_site(frame), reason});
      }
      doubtful = true;
    }
  }
  value->iterator = -1;
  keeper.keep(object, value);
  if (doubtful) value->iterator = -2;  // to be looked at afresh every time
  return true;
}

// ---- comparing -------------------------------------------------------------------------------------------

bool FrameMemory::fits(const FrameState& state, RawFrame* frame, std::string* why) const {
  if (state.blocks != frame_open_blocks(frame)) {
    *why = "other blocks are open at " + place(*state.info, state.unit);
    return false;
  }
  if (!state.info->optimized && frame_locals(frame) != state.dict) {
    *why = place(*state.info, state.unit) + " runs with other names";
    return false;
  }
  for (int i = 0; i < state.info->fast_count; ++i) {
    if (!value_fits(state.fast[i], *variable_at(frame, state.info->code, i), why)) return false;
  }
  for (const NamedValue& entry : state.names) {
    if (entry.value.iterator < 0) continue;
    PyObject* live = PyDict_GetItemWithError(state.dict, entry.name.get());
    PyErr_Clear();
    if (!value_fits(entry.value, live, why)) return false;
  }
  return stack_fits(state, frame, why);
}

// Iterators in names: gone is no harm (the name is left unset), but one that lives must go back all the way.
bool FrameMemory::value_fits(const Value& value, PyObject* live, std::string* why) const {
  if (value.iterator < 0 || iterator_target(records_[value.iterator], live) == nullptr) return true;
  PyObject* target = nullptr;
  return iterator_fits(value.iterator, live, &target, why);
}

bool FrameMemory::stack_fits(const FrameState& state, RawFrame* frame, std::string* why) const {
  if (surviving_depth(frame, state.info) != static_cast<int>(state.stack.size())) {
    *why = "the value stack at " + place(*state.info, state.unit) + " is of another depth";
    return false;
  }
  std::size_t exit = 0;
  for (std::size_t i = 0; i < state.stack.size(); ++i) {
    PyObject* live = frame_stack(frame)[i];
    const Value& value = state.stack[i];
    if (value.object == nullptr) {
      if (live == nullptr) continue;
      *why = "the value stack at " + place(*state.info, state.unit) + " has changed";
      return false;
    }
    if (exit < state.exits.size() && state.exits[exit].slot == i) {
      const ExitMark& mark = state.exits[exit++];
      ExitMark now;
      if (is_exit(live, &now) && now.function == mark.function && now.type == mark.type) continue;
      *why = "another with block is open at " + place(*state.info, state.unit);
      return false;
    }
    if (value.iterator >= 0) {
      PyObject* target = nullptr;
      if (live == nullptr) return false;
      if (!iterator_fits(value.iterator, live, &target, why)) return false;
      continue;
    }
    if (recall(value, live) == nullptr) {
      *why = "a value on the stack of " + place(*state.info, state.unit) + " has gone";
      return false;
    }
  }
  return true;
}

bool FrameMemory::doubts_hold(std::string* why) const {
  for (const Doubt& doubt : doubts_) {
    PyObject* generator = weak_object(doubt.weak.get());
    if (generator == nullptr) continue;
    if (generator_state(generator) == GeneratorState::kSuspended) {
      RawFrame* frame = generator_frame(generator);
      if (fingerprint(frame, code_info(frame_code(frame))) + frame_site(frame) == doubt.position) continue;
    }
    *why = doubt.why;
    return false;
  }
  return true;
}

// ---- putting back ----------------------------------------------------------------------------------------

void FrameMemory::put(const FrameState& state, RawFrame* frame, std::vector<std::string>* unset) {
  // A with block that was entered again is the one to be left. Its manager replaces the earlier one in this frame's
  // names, and its __exit__ stays on the stack: the earlier manager has been left and must not be left twice.
  const std::size_t managers_before = managers_.size();
  for (const ExitMark& mark : state.exits) {
    ExitMark now;
    if (is_exit(frame_stack(frame)[mark.slot], &now) && now.manager != mark.manager) {
      managers_.emplace_back(mark.manager, now.manager);
    }
  }
  PyObject** stack = frame_stack(frame);
  for (std::size_t i = 0; i < state.stack.size(); ++i) {
    bool is_exit_slot = false, lost = false;
    for (const ExitMark& mark : state.exits) is_exit_slot |= mark.slot == i;
    if (state.stack[i].object == nullptr || is_exit_slot) continue;
    PyObject* object = put_value(state.stack[i], stack[i], &lost);
    if (object != nullptr) put_slot(&stack[i], object);
    if (i + 1 < state.stack.size() && state.stack[i + 1].iterator >= 0) shorten(object, state.stack[i].size);
  }
  for (int i = 0; i < state.info->fast_count; ++i) {
    PyObject** variable = variable_at(frame, state.info->code, i);
    bool lost = false;
    PyObject* object = put_value(state.fast[i], *variable, &lost);
    if (lost) {
      unset->push_back(text_of(fast_name(state.info->code, i)));
      if (!kLocalsMayBeUnbound && variable == frame_fast(frame) + i) object = lost_value();
    }
    put_slot(variable, object);
  }
  if (!state.info->optimized) put_names(state, frame_locals(frame), unset);
  managers_.resize(managers_before);
}

PyObject* FrameMemory::put_value(const Value& value, PyObject* live, bool* lost) {
  for (const auto& [before, now] : managers_) {
    if (value.object == before) return now;
  }
  PyObject* object = nullptr;
  if (value.iterator >= 0) {
    object = iterator_target(records_[value.iterator], live);
    if (object != nullptr) put_iterator(value.iterator, object);
  } else {
    object = recall(value, live);
  }
  *lost = object == nullptr && value.held != Held::kUnbound;
  return object;
}

void FrameMemory::put_slot(PyObject** slot, PyObject* object) {
  // The slot has its new value before the old one goes to the keeper: no frame ever holds a dead object.
  if (*slot == object) return;
  keeper.discard(Object::take(std::exchange(*slot, Object::share(object).release())));
  settle_owner(object);
}

void FrameMemory::put_names(const FrameState& state, PyObject* dict, std::vector<std::string>* unset) {
  const Object known = Object::take(PySet_New(nullptr));
  for (const NamedValue& entry : state.names) {
    PyObject* const name = entry.name.get();
    if (known) PySet_Add(known.get(), name);
    if (is_dunder(name)) continue;  // the interpreter's own
    PyObject* live = PyDict_GetItemWithError(dict, name);
    bool lost = false;
    PyObject* object = put_value(entry.value, live, &lost);
    if (lost) unset->push_back(text_of(name));
    if (object == live) continue;
    keeper.discard(Object::share(live));
    if (object != nullptr) {
      PyDict_SetItem(dict, name, object);
      settle_owner(object);
    } else {
      PyDict_DelItem(dict, name);
    }
    PyErr_Clear();
  }
  // Names that came later did not exist then.
  const Object now = Object::take(PyDict_Keys(dict));
  for (Py_ssize_t i = 0; known && now && i < PyList_GET_SIZE(now.get()); ++i) {
    PyObject* name = PyList_GET_ITEM(now.get(), i);
    if (is_dunder(name) || PySet_Contains(known.get(), name) != 0) continue;
    keeper.discard(Object::share(PyDict_GetItemWithError(dict, name)));
    PyDict_DelItem(dict, name);
  }
  PyErr_Clear();
}

}  // namespace finitude::bindings
