// Positions of running iterators: read, compared, set back.
#include "rewind/frames_layouts.h"
#include "rewind/frames_memory.h"

namespace finitude::bindings {
namespace {

// Bounds for programs that nest iterators without end; what exceeds them is refused, and not remembered in part.
constexpr int kMaxNesting = 8;
constexpr std::size_t kMaxRecords = 512;
constexpr Py_ssize_t kMaxInTuple = 63;  // of iterators that one draws from: a bit for each

std::string cannot(const char* what, PyObject* object) {
  return std::string("an iterator of type '") + Py_TYPE(object)->tp_name + "' " + what;
}

std::uint64_t mixed(std::uint64_t sum, std::uint64_t more) { return (sum ^ more) * 0x100000001b3ull; }

}  // namespace

// One number of the address and of all fields, inner iterators included. The address is safe as the caller holds the
// iterator. 0 wherever a part cannot be read: a generator's position is in its frame, which has no place in this
// number.
std::uint64_t position_of(PyObject* iterator, int nesting) {
  const TypeInfo type = type_info(Py_TYPE(iterator));
  if (type.layout < 0 || nesting >= kMaxNesting) return 0;
  const char* fields = kLayouts[type.layout].fields;
  PyObject** words = words_of(iterator);
  std::uint64_t sum = mixed(0xcbf29ce484222325ull, reinterpret_cast<std::uintptr_t>(iterator));
  const auto inner = [&](PyObject* child) {
    const std::uint64_t at = child != nullptr ? position_of(child, nesting + 1) : 1;
    return sum = mixed(sum, at), at != 0;
  };
  for (int i = 0; fields[i] != 0; ++i) {
    switch (fields[i]) {
      case 'n':
      case 's':
      case 'o':
        sum = mixed(sum, reinterpret_cast<std::uintptr_t>(words[i]));
        break;
      case 'p': {
        // Python integers by value: the object may be made again with each step.
        if (words[i] == nullptr) break;  // enumerate's, which counts in a machine word as long as that goes
        int overflow = 0;
        if (!PyLong_CheckExact(words[i])) return 0;
        sum = mixed(sum, static_cast<std::uint64_t>(PyLong_AsLongLongAndOverflow(words[i], &overflow)));
        if (overflow != 0) return 0;
        break;
      }
      case 'a':
        if (words[i] == nullptr || !PyList_CheckExact(words[i])) return 0;
        sum = mixed(sum, static_cast<std::uint64_t>(PyList_GET_SIZE(words[i])));
        break;
      case 'i':
      case 'I':
        if (!inner(words[i])) return 0;
        break;
      case 't':
        if (words[i] == nullptr || !PyTuple_CheckExact(words[i])) return 0;
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(words[i]); ++k) {
          if (!inner(PyTuple_GET_ITEM(words[i], k))) return 0;
        }
        break;
      case 'd':
      case 'c': {
        const std::int64_t digits = digits_of(words, i, fields[i]);
        if (digits < 0) return 0;
        sum = mixed(mixed(sum, static_cast<std::uint64_t>(digits)), words[i + 1] != nullptr);
        break;
      }
      default:
        break;
    }
  }
  return sum | 1;
}

// Appends a record for the iterator and, behind it, for all that it draws from. Returns the index, or -1 with the
// reason. On failure the records appended so far are removed: an outer iterator without its inner ones cannot go back.
// References in records are owned, and given to the keeper when a record is dropped.
int FrameMemory::remember_iterator(PyObject* object, std::string* why) {
  const TypeInfo type = type_info(Py_TYPE(object));
  if (nesting_ >= kMaxNesting || records_.size() >= kMaxRecords) {
    *why = "iterators are nested too deeply";
    return -1;
  }
  const int index = static_cast<int>(records_.size());
  records_.emplace_back();
  records_[index].object = object;
  ++nesting_;
  bool done = true;
  if (type.external) {
    // Its position is the caller's; held, so that the next epoch's does not take its place.
    records_[index].kind = IteratorRecord::Kind::kExternal;
    records_[index].strong = true;
  } else if (type.generator) {
    done = remember_generator(object, index, why);
  } else if (type.layout >= 0) {
    records_[index].layout = type.layout;
    done = remember_fields(object, index, why);
  } else {
    *why = cannot("cannot be set back", object);
    done = false;
  }
  --nesting_;
  IteratorRecord& record = records_[index];
  record.end = static_cast<int>(records_.size());
  if (!done) {
    while (static_cast<int>(records_.size()) > index) {
      drop_record(&records_.back());
      records_.pop_back();
    }
    return -1;
  }
  // Held only if all that it leads to may be held as well; otherwise an iterator over a list of activations would keep
  // their memory alive until the next step.
  if (record.strong) record.ref = Object::share(object);
  return index;
}

bool FrameMemory::remember_fields(PyObject* object, int index, std::string* why) {
  // The record is filled by field, in the order of the layout; put_fields() and fields_fit() walk in the same order.
  const char* fields = kLayouts[records_[index].layout].fields;
  PyObject** words = words_of(object);
  bool strong = true;
  // Children are appended to records_, so the record is looked up again after each.
  const auto inner = [&](PyObject* child) {
    const int at = remember_iterator(child, why);
    if (at < 0) return false;
    strong &= records_[at].strong;
    return true;
  };
  for (int i = 0; fields[i] != 0; ++i) {
    switch (fields[i]) {
      case 'n':
        records_[index].words[i] = reinterpret_cast<std::int64_t>(words[i]);
        break;
      case 'a':
        if (words[i] == nullptr || !PyList_CheckExact(words[i])) return false;
        records_[index].words[i] = PyList_GET_SIZE(words[i]);
        break;
      case 'p':
        // Integers do not change; to hold one costs nothing and keeps the very object.
        records_[index].objects[i] = Object::share(words[i]);
        break;
      case 's':
      case 'o':
        // Mostly the same iterator as last time, over the same list: then it need not be looked into again.
        if (static_cast<std::size_t>(index) < old_records_.size() && old_records_[index].source.object == words[i]) {
          std::swap(records_[index].source, old_records_[index].source);
        }
        keeper.keep(words[i], &records_[index].source);
        records_[index].source_shape = fields[i] == 's' ? shape_of(words[i]) : 0;
        strong &= words[i] == nullptr || records_[index].source.held == Held::kStrong;
        break;
      case 'i':
      case 'I':
        records_[index].words[i] = words[i] != nullptr;
        if (words[i] != nullptr && !inner(words[i])) return false;
        break;
      case 't':
        if (words[i] == nullptr || !PyTuple_CheckExact(words[i])) return false;
        if (PyTuple_GET_SIZE(words[i]) > kMaxInTuple) {
          *why = cannot("draws from too many others", object);
          return false;
        }
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(words[i]); ++k) {
          PyObject* item = PyTuple_GET_ITEM(words[i], k);
          if (item == nullptr) continue;
          records_[index].words[i] |= std::int64_t{1} << k;
          if (!inner(item)) return false;
        }
        break;
      case 'd':
      case 'c':
        records_[index].words[i] = digits_of(words, i, fields[i]);
        if (records_[index].words[i] >= 0) break;
        *why = cannot("has a position that is too long to record", object);
        return false;
      case 'r':
        records_[index].words[i] = words[i] != nullptr;
        break;
      case 'f': {
        // The function is not put back, as it cannot be exchanged. It only decides whether the iterator may be held: a
        // closure may keep tensors alive.
        Value function;
        keeper.keep(words[i], &function);
        strong &= words[i] == nullptr || function.held == Held::kStrong;
        keeper.forget(&function);
        break;
      }
      default:
        break;
    }
  }
  records_[index].strong = strong;
  return true;
}

bool FrameMemory::remember_generator(PyObject* object, int index, std::string* why) {
  // Weakly, even where everything else may be held for long: letting go of a generator runs its finally clauses, which
  // must not come late.
  records_[index].strong = keeper.keep_all;
  if (!keeper.keep_all) records_[index].ref = Object::take(PyWeakref_NewRef(object, nullptr));
  if (!keeper.keep_all && !records_[index].ref) {
    PyErr_Clear();
    *why = cannot("cannot be referenced weakly", object);
    return false;
  }
  switch (generator_state(object)) {
    // The step runs inside it. Its frame is on the stack and is remembered there; here it only has to be the same one.
    case GeneratorState::kRunning:
      records_[index].kind = IteratorRecord::Kind::kRunning;
      return true;
    case GeneratorState::kFinished:
      *why = cannot("has ended", object);
      return false;
    case GeneratorState::kSuspended:
      break;
  }
  records_[index].kind = IteratorRecord::Kind::kGenerator;
  // A suspended generator is a frame that waits: its names and value stack are remembered like those of a frame on the
  // stack. Its state belongs to the memory and is reused in the next step, often for the same generator.
  FrameState* state = spare_state();
  RawFrame* frame = generator_frame(object);
  CodeInfo* info = code_info(frame_code(frame));
  if (state->info != info) forget(state);
  state->info = info;
  state->unit = frame_site(frame);
  records_[index].state = state;
  return remember(frame, state, why);
}

// The iterator that was remembered, if it can be proved to be that one, else null; borrowed. `live` is what is in its
// place now, which may have taken its address.
PyObject* FrameMemory::iterator_target(const IteratorRecord& record, PyObject* live) const {
  if (record.strong) return record.ref.get();
  if (record.ref) return weak_object(record.ref.get());
  // Not held and not weakly referenced, as CPython's iterators take no weak references. Then it must still be in its
  // place, with the same type; fields_fit() proves what it draws from.
  return live == record.object && type_info(Py_TYPE(live)).layout == record.layout ? live : nullptr;
}

// Nothing is changed here. `target` is the iterator to set back, borrowed; it is null only if the result is false.
bool FrameMemory::iterator_fits(int index, PyObject* live, PyObject** target, std::string* why) const {
  const IteratorRecord& record = records_[index];
  *target = iterator_target(record, live);
  if (*target == nullptr) {
    *why = "an iterator that was running has ended";
    return false;
  }
  switch (record.kind) {
    case IteratorRecord::Kind::kExternal:
      return true;
    case IteratorRecord::Kind::kFields:
      return fields_fit(index, *target, why);
    case IteratorRecord::Kind::kRunning:
      if (*target == live && generator_state(*target) == GeneratorState::kRunning) return true;
      *why = "the generator that was running is another one now";
      return false;
    case IteratorRecord::Kind::kGenerator:
      break;
  }
  const FrameState& state = *record.state;
  if (generator_state(*target) != GeneratorState::kSuspended) {
    *why = "generator " + state.info->function + " has ended or is running";
    return false;
  }
  RawFrame* frame = generator_frame(*target);
  // A suspended generator resumes where it stopped, and its value stack is that of the instruction there. Unlike a
  // frame in a call it is not moved to another instruction.
  if (frame_code(frame) != state.info->code || frame_site(frame) != state.unit) {
    *why = "generator " + state.info->function + " is at " + place(*state.info, frame_site(frame)) + " instead of " +
           place(*state.info, state.unit);
    return false;
  }
  return fits(state, frame, why);
}

bool FrameMemory::hides_nothing(PyObject* iterator) {
  for (int depth = 0; depth < kMaxNesting; ++depth) {
    const TypeInfo type = type_info(Py_TYPE(iterator));
    if (type.generator || type.external || Py_TYPE(iterator) == &PyMap_Type) return true;
    // enumerate counts only once the value is there; zip and filter hold values meanwhile.
    if (Py_TYPE(iterator) != &PyEnum_Type || type.layout < 0 || words_of(iterator)[1] == nullptr) return false;
    iterator = words_of(iterator)[1];
  }
  return false;
}

bool FrameMemory::fields_fit(int index, PyObject* target, std::string* why) const {
  const IteratorRecord& record = records_[index];
  const char* fields = kLayouts[record.layout].fields;
  PyObject** words = words_of(target);
  int child = index + 1;
  PyObject* inner = nullptr;
  for (int i = 0; fields[i] != 0; ++i) {
    switch (fields[i]) {
      // Null as source: the iterator had ended when the snapshot was taken, and is ended again.
      case 's': {
        if (record.source.object == nullptr) break;
        PyObject* source = recall(record.source, words[i]);
        if (source == nullptr || shape_of(source) != record.source_shape) {
          *why = cannot("runs over something that has changed", target);
          return false;
        }
        break;
      }
      case 'o':
        if (record.source.object == nullptr || recall(record.source, words[i]) != nullptr) break;
        *why = cannot("would have to give a value once more that is gone", target);
        return false;
      // Cut to its old length later, so it must not be shorter.
      case 'a':
        if (words[i] == nullptr || !PyList_CheckExact(words[i]) || PyList_GET_SIZE(words[i]) < record.words[i])
          return false;
        break;
      case 'i':
      case 'I':
        if (record.words[i] == 0) break;
        if (!iterator_fits(child, words[i], &inner, why)) return false;
        // These iterators never exchange what they draw from, so another one here means that `target` is not the one
        // that was remembered. chain and islice ('I') do, and get the old one back.
        if (fields[i] == 'i' && inner != words[i]) {
          *why = cannot("draws from another iterator now", target);
          return false;
        }
        child = records_[child].end;
        break;
      case 't':
        if (words[i] == nullptr || !PyTuple_CheckExact(words[i])) return false;
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(words[i]); ++k) {
          PyObject* item = PyTuple_GET_ITEM(words[i], k);
          if ((record.words[i] >> k & 1) == 0) continue;
          if (child >= record.end || !iterator_fits(child, item, &inner, why)) return false;
          if (inner != item && item != nullptr) {
            *why = cannot("draws from another iterator now", target);
            return false;
          }
          child = records_[child].end;
        }
        break;
      default:
        break;
    }
  }
  return true;
}

// After iterator_fits() for the same target, so nothing here can be refused. An external iterator is set back by the
// loader log, and a running generator by its frame on the stack.
void FrameMemory::put_iterator(int index, PyObject* target) {
  const IteratorRecord& record = records_[index];
  if (record.kind == IteratorRecord::Kind::kFields) put_fields(index, target);
  if (record.kind == IteratorRecord::Kind::kGenerator) {
    std::vector<std::string> unset;  // names inside a generator are its own affair
    put(*record.state, generator_frame(target), &unset);
  }
}

void FrameMemory::put_fields(int index, PyObject* target) {
  const IteratorRecord& record = records_[index];
  const char* fields = kLayouts[record.layout].fields;
  PyObject** words = words_of(target);
  int child = index + 1;
  for (int i = 0; fields[i] != 0; ++i) {
    switch (fields[i]) {
      case 'n':
        words[i] = reinterpret_cast<PyObject*>(record.words[i]);
        break;
      case 'a': {
        const Py_ssize_t size = PyList_GET_SIZE(words[i]);
        Object later = Object::take(PyList_GetSlice(words[i], record.words[i], size));
        if (later) PyList_SetSlice(words[i], record.words[i], size, nullptr);
        keeper.discard(std::move(later));  // let go of when the frames are whole again
        break;
      }
      case 'p':
        put_slot(&words[i], record.objects[i].get());
        break;
      // A source that the ended iterator has dropped is given back, with a new reference; the record keeps its own.
      case 's':
      case 'o':
        put_slot(&words[i], record.source.object == nullptr ? nullptr : recall(record.source, words[i]));
        break;
      case 'i':
      case 'I': {
        PyObject* inner = record.words[i] == 0 ? nullptr : iterator_target(records_[child], words[i]);
        if (inner != nullptr) {
          put_iterator(child, inner);
          child = records_[child].end;
        }
        put_slot(&words[i], inner);
        break;
      }
      case 't':
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(words[i]); ++k) {
          if ((record.words[i] >> k & 1) == 0) continue;
          PyObject** item = &PyTuple_GET_ITEM(words[i], k);
          // The tuple is written in place: no other object refers to it, as the iterator made it for itself.
          PyObject* inner = iterator_target(records_[child], *item);
          put_iterator(child, inner);
          put_slot(item, inner);
          child = records_[child].end;
        }
        break;
      case 'd':
      case 'c':
        put_digits(words, i, fields[i], record.words[i]);
        break;
      case 'r': {
        const Object given = record.words[i] == 0 ? Object() : given_by_digits(words, i - 1, fields[i - 1]);
        put_slot(&words[i], given.get());
        break;
      }
      default:
        break;
    }
  }
}

// Gives all references of the record to the keeper; nothing is freed before flush().
void FrameMemory::drop_record(IteratorRecord* record) {
  keeper.discard(std::move(record->ref));
  for (Object& object : record->objects) keeper.discard(std::move(object));
  keeper.forget(&record->source);
}

}  // namespace finitude::bindings
