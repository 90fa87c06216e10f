// The code table and the static analysis of a code object's value stack.
#include "pyhost/frames_code.h"

#include <algorithm>
#include <climits>
#include <deque>
#include <filesystem>
#include <memory>
#include <unordered_map>
#include <utility>

#include "pyhost/object_python.h"
#include "pyhost/python_bytecode.h"
#include "pyhost/python_compat.h"

namespace finitude::bindings {
namespace {

constexpr std::size_t kMaxUnits = 32000;  // of one code object; larger ones are not analysed

struct Table {
  // Open addressing over pointers: a look-up is on the path of every recorded op.
  std::vector<std::pair<PyCodeObject*, CodeInfo*>> slots{1024};
  std::size_t used = 0;
  std::vector<std::unique_ptr<CodeInfo>> infos;  // also those of older rules: snapshots point at them
  std::deque<record::Frame> frames;
  CodeRules rules;
};

// Never destroyed: it owns references that must not be dropped after the interpreter has gone.
Table& table() {
  static auto* instance = new Table;
  return *instance;
}

// The slot of this code object, or the empty one where it belongs. There always is an empty one: the table is at most
// half full. Addresses are multiples of 16, so their low bits are shifted out before they are mixed.
std::size_t slot_of(const Table& t, PyCodeObject* code) {
  const std::size_t mask = t.slots.size() - 1;
  std::size_t i = (reinterpret_cast<std::uintptr_t>(code) >> 4) * 0x9e3779b97f4a7c15ull >> 20 & mask;
  while (t.slots[i].first != nullptr && t.slots[i].first != code) i = (i + 1) & mask;
  return i;
}

void grow(Table& t) {
  std::vector<std::pair<PyCodeObject*, CodeInfo*>> old(t.slots.size() * 2);
  old.swap(t.slots);
  for (const auto& entry : old) {
    if (entry.first != nullptr) t.slots[slot_of(t, entry.first)] = entry;
  }
}

// A path that is not UTF-8 has its odd bytes as surrogates. They are written as \x.., as plain_json.text in Python
// writes them: the report names one file by one text.
std::string escaped(PyObject* unicode) {
  const Object bytes = Object::take(PyUnicode_AsEncodedString(unicode, "utf-8", "backslashreplace"));
  if (!bytes) {
    PyErr_Clear();
    return "?";
  }
  std::string text(PyBytes_AS_STRING(bytes.get()), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.get())));
  for (std::size_t at = 0; (at = text.find("\\udc", at)) != std::string::npos;) text.replace(at, 4, "\\x");
  return text;
}

// Never fails and leaves no Python error: it runs inside hooks of the program.
std::string text_of(PyObject* unicode) {
  if (unicode == nullptr || !PyUnicode_Check(unicode)) return "?";
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(unicode, &size);
  if (text == nullptr) {
    PyErr_Clear();
    return escaped(unicode);
  }
  return std::string(text, static_cast<std::size_t>(size));
}

bool below(const std::string& file, const std::string& folder) {
  if (folder.empty() || file.size() <= folder.size() || !file.starts_with(folder)) return false;
  const bool slash = folder.back() == '/';
  if (!slash && file[folder.size()] != '/') return false;
  const std::size_t rest = folder.size() + (slash ? 0 : 1);
  // Installed packages live below the standard library's folder, and they count as the user's.
  return file.compare(rest, 14, "site-packages/") != 0 && file.compare(rest, 14, "dist-packages/") != 0;
}

bool is_library(const Table& t, const std::string& file) {
  if (file.starts_with("<frozen ") || file.starts_with("<__array_function__")) return true;
  if (file.ends_with("-packages/typing_extensions.py")) return true;  // deprecated() there wraps functions of torch
  for (const std::string& folder : t.rules.library_prefixes) {
    if (below(file, folder)) return true;
  }
  return false;
}

// The table finds code by its address; were it freed, another code object could get the address and be taken for the
// first.
std::unique_ptr<CodeInfo> make_info(const Table& t, PyCodeObject* code) {
  auto info = std::make_unique<CodeInfo>();
  info->code = hold_for_good(code);
  info->file = text_of(code->co_filename);
  if (!info->file.empty() && info->file[0] != '<' && info->file[0] != '/') {
    std::error_code error;
    const auto path = std::filesystem::absolute(info->file, error);
    if (!error) info->file = path.lexically_normal().string();
  }
  info->function = text_of(code->co_name);
  info->library = is_library(t, info->file);
  info->optimized = (code->co_flags & CO_OPTIMIZED) != 0;
  info->fast_count = code_fast_count(code);
  for (const PyObject* call : t.rules.module_calls) info->module_call |= call == reinterpret_cast<PyObject*>(code);
  return info;
}

// ---- the value stack at each instruction -----------------------------------------------------------------

struct Instruction {
  int unit = 0, op = 0, argument = 0, next = 0;
};

// `first` is the unit where the instruction under way begins, -1 between instructions. A cache entry with `first` set
// would be one between a prefix and its instruction, which the compiler does not make.
// Instructions in order; EXTENDED_ARG prefixes and cache entries belong to the instruction they serve.
std::vector<Instruction> decode(const unsigned char* bytes, int units, std::vector<CodeInfo::Site>* sites) {
  std::vector<Instruction> out;
  int prefix = 0, first = -1;
  for (int unit = 0; unit < units; ++unit) {
    const int op = bytes[2 * unit];
    if (op_is_cache(op)) {
      if (!out.empty() && first < 0) {
        out.back().next = unit + 1;
        (*sites)[unit].start = (*sites)[unit - 1].start;
      }
      continue;
    }
    if (first < 0) first = unit;
    (*sites)[unit].start = static_cast<std::int16_t>(first);
    const int argument = prefix | bytes[2 * unit + 1];
    if (op == EXTENDED_ARG) {
      prefix = argument << 8;
      continue;
    }
    out.push_back({first, op, argument, unit + 1});
    prefix = 0;
    first = -1;
  }
  return out;
}

// A walk over all paths of the code that computes the depth of the value stack before each instruction, as the compiler
// does. CPython's compiler makes code in which all paths to an instruction agree on the depth. Where they do not agree
// here, a table of python_bytecode.h does not fit this interpreter: `sound` becomes false, and nothing of the code
// object is used.
struct Flow {
  const std::vector<Instruction>& code;
  std::vector<int> index;  // by unit: position in `code`, -1 not the start of an instruction
  std::vector<int> depth;  // by position, -1 not reached
  std::vector<int> work;
  bool sound = true;

  // A path comes to `unit` with so many values. An instruction is walked from once, as its depth never changes.
  void reach(int unit, int value) {
    if (unit < 0 || unit >= static_cast<int>(index.size()) || index[unit] < 0 || value < 0) {
      sound = false;
      return;
    }
    int& known = depth[index[unit]];
    if (known == value) return;
    if (known >= 0) {
      sound = false;
      return;
    }
    known = value;
    work.push_back(index[unit]);
  }

  void run() {
    while (!work.empty() && sound) {
      const int at = work.back();
      work.pop_back();
      const Instruction& step = code[at];
      const int target = op_jump_target(step.op, step.argument, step.next);
      if (target >= 0) {
        const int effect = op_stack_effect(step.op, step.argument, true);
        if (effect == INT_MAX)
          sound = false;
        else
          reach(target, depth[at] + effect);
      }
      if (op_never_falls_through(step.op)) continue;
      const int effect = op_stack_effect(step.op, step.argument, false);
      if (effect == INT_MAX)
        sound = false;
      else
        reach(step.next, depth[at] + effect);
    }
  }
};

// One number of the exception table: six bits a byte, the highest first, bit 6 set where another byte follows. -1 at
// the end of the table.
int read_varint(const unsigned char*& at, const unsigned char* end) {
  int value = 0, byte = 0;
  do {
    if (at >= end) return -1;
    byte = *at++;
    value = value << 6 | (byte & 63);
  } while ((byte & 64) != 0 && value < (1 << 24));
  return value;
}

// Handlers are entered with the stack cut down to the depth that the table gives, then the position of the raising
// instruction where the flag is set, then the exception.
void reach_handlers(PyObject* handlers, Flow* flow) {
  if (handlers == nullptr || !PyBytes_Check(handlers)) return;
  const auto* at = reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(handlers));
  const auto* end = at + PyBytes_GET_SIZE(handlers);
  while (at < end && flow->sound) {
    read_varint(at, end);  // start
    read_varint(at, end);  // length
    const int target = read_varint(at, end);
    const int depth_and_flag = read_varint(at, end);
    if (target < 0 || depth_and_flag < 0) {
      flow->sound = false;
      return;
    }
    flow->reach(target, (depth_and_flag >> 1) + (depth_and_flag & 1) + 1);
  }
}

void fill_sites(const Flow& flow, int stack_size, CodeInfo* info) {
  for (std::size_t at = 0; at < flow.code.size(); ++at) {
    const Instruction& step = flow.code[at];
    const int depth = flow.depth[at];
    CodeInfo::Site site;
    site.start = static_cast<std::int16_t>(step.unit);
    if (depth >= 0 && depth <= stack_size) {
      site.depth = static_cast<std::int16_t>(depth);
      site.draws = step.op == FOR_ITER && depth > 0;
      // Only values below a call outlive it. What the callee has popped or moved of its operands is not visible from
      // outside.
      const CallShape call = op_call_shape(step.op, step.argument);
      if (call.taken >= 0) {
        site.survivors = static_cast<std::int16_t>(depth - call.taken);
        site.callable = static_cast<std::int16_t>(depth - call.taken + call.callable);
        site.callable_or_next = call.or_next;
        if (site.survivors < 0) site.survivors = site.callable = -1;
      } else if (op_sends(step.op)) {
        site.survivors = static_cast<std::int16_t>(std::max(depth - 1, 0));
      } else {
        // Other instructions (an addition, an attribute) may call Python code too, and pop their operands first. Where
        // a value is counted that the instruction drops, the comparison only becomes stricter.
        const int effect = op_stack_effect(step.op, step.argument, false);
        site.survivors = static_cast<std::int16_t>(effect < 0 ? std::max(depth + effect, 0) : depth);
      }
    }
    // The second half of a 3.11 call is the same place as the first.
    const bool second_half = at > 0 && op_is_first_half_of_call(flow.code[at - 1].op);
    if (second_half) site = info->sites[flow.code[at - 1].unit];
    for (int unit = step.unit; unit < step.next; ++unit) info->sites[unit] = site;
  }
  // Backward jumps close loops: everything from the target to the jump may run again without the frame being left. A
  // frame that waits there can be at the same instruction in another pass, which the position alone does not show.
  for (const Instruction& step : flow.code) {
    const int target = op_jump_target(step.op, step.argument, step.next);
    if (target < 0 || target > step.unit) continue;
    for (int unit = target; unit < step.next; ++unit) info->sites[unit].in_loop = true;
  }
}

}  // namespace

void set_code_rules(const CodeRules& rules) {
  // What is the library's may be decided otherwise now. `infos` keeps the old entries: states of snapshots point to
  // them.
  Table& t = table();
  t.rules = rules;
  for (PyObject* call : rules.module_calls) hold_for_good(call);
  t.slots.assign(1024, {nullptr, nullptr});
  t.used = 0;
}

bool is_library_file(const std::string& file) { return is_library(table(), file); }

// One look-up per recorded operator: the hit path allocates nothing and runs no Python code.
CodeInfo* code_info(PyCodeObject* code) {
  Table& t = table();
  std::size_t slot = slot_of(t, code);
  if (t.slots[slot].first != nullptr) return t.slots[slot].second;
  if ((t.used + 1) * 2 > t.slots.size()) {
    grow(t);
    slot = slot_of(t, code);
  }
  t.infos.push_back(make_info(t, code));
  t.slots[slot] = {code, t.infos.back().get()};
  ++t.used;
  return t.infos.back().get();
}

// Done at most once per code object, also where it fails: code that is not understood would fail again in every step.
bool analyse(CodeInfo* info) {
  if (info->analysed) return !info->sites.empty();
  info->analysed = true;
  const Object bytes = code_bytes(info->code);
  if (!bytes || !PyBytes_Check(bytes.get())) {
    PyErr_Clear();
    return false;
  }
  const auto units = static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.get()) / 2);
  if (units > 0 && units <= kMaxUnits) {
    info->sites.resize(units);
    const auto code = decode(reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(bytes.get())),
                             static_cast<int>(units), &info->sites);
    Flow flow{code, std::vector<int>(units, -1), std::vector<int>(code.size(), -1), {}};
    for (std::size_t at = 0; at < code.size(); ++at) flow.index[code[at].unit] = static_cast<int>(at);
    flow.reach(0, code_entry_depth(info->code));
    flow.run();
    reach_handlers(code_handlers(info->code), &flow);
    flow.run();
    if (flow.sound)
      fill_sites(flow, info->code->co_stacksize, info);
    else
      info->sites.clear();
  }
  return !info->sites.empty();
}

// Null means that nothing may be assumed of the stack. Callers take the careful answer then: a user's frame is not
// remembered, and a frame of a library counts as one that waits in a loop.
const CodeInfo::Site* site_at(CodeInfo* info, int unit) {
  if (!analyse(info) || unit < 0 || unit >= static_cast<int>(info->sites.size())) return nullptr;
  return &info->sites[unit];
}

// Interned, since the same few lines come in every step: the file's name is copied once per line and not once per
// operator. 0 in `frames` means unknown, so ids are stored with 1 added.
FrameId frame_id(CodeInfo* info, int unit) {
  const auto at = static_cast<std::size_t>(unit < 0 ? 0 : unit);
  if (at >= info->frames.size()) info->frames.resize(at + 16);
  if (info->frames[at] == 0) {
    Table& t = table();
    record::Frame frame{info->file, PyCode_Addr2Line(info->code, static_cast<int>(at) * 2), info->function};
    frame.site = static_cast<int>(at);
#if PY_VERSION_HEX >= 0x030b0000
    int line = 0;
    PyCode_Addr2Location(info->code, static_cast<int>(at) * 2, &line, &frame.column, &frame.end_line,
                         &frame.end_column);
#endif
    t.frames.push_back(std::move(frame));
    info->frames[at] = static_cast<FrameId>(t.frames.size());
  }
  return info->frames[at] - 1;
}

const record::Frame& frame_at(FrameId id) { return table().frames[static_cast<std::size_t>(id)]; }

}  // namespace finitude::bindings
