// What is known of each code object that has been seen running: whose it is, its lines, and how deep the
// value stack is at each instruction. Decided once and kept; a code object in the table stays alive.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>
#include <vector>

#include "record/trace.h"

namespace finitude::bindings {

struct CodeInfo {
  PyCodeObject* code = nullptr;  // owned, for good
  std::string file;              // absolute
  std::string function;
  bool library = false;      // not the user's: torch, the standard library, finitude
  bool module_call = false;  // nn.Module._call_impl
  bool optimized = false;    // a function: its names live in fast slots, not in a dict
  int fast_count = 0;
  std::vector<std::int32_t> frames;  // by code unit: 1 + index into frame_at, 0 not looked up yet

  // Filled by analyse(), by code unit.
  // One code unit. Cache entries and EXTENDED_ARG prefixes have the values of the instruction that they belong to,
  // since a frame may report any of these units as its position.
  struct Site {
    std::int16_t start = -1;      // unit of the instruction this unit belongs to
    std::int16_t depth = -1;      // values on the stack before it, -1 unknown
    std::int16_t survivors = -1;  // of those, the ones that outlive a call that it makes
    std::int16_t callable = -1;   // index on the stack of what it calls, -1 not a call
    bool callable_or_next = false;
    bool in_loop = false;
    bool draws = false;  // takes the next value from the iterator on top of the stack
  };
  bool analysed = false;
  std::vector<Site> sites;
};

struct CodeRules {
  std::vector<std::string> library_prefixes;  // folders; site-packages below one of them is the user's again
  std::vector<PyObject*> module_calls;        // code objects of nn.Module._call_impl
};

// Both tables start again when the rules change; entries handed out before stay valid. The code objects are held for
// good.
void set_code_rules(const CodeRules& rules);

// Is code of that file the library's: torch, finitude, the standard library? `file` is absolute; the GIL is held.
bool is_library_file(const std::string& file);

// Never null; the GIL is held.
CodeInfo* code_info(PyCodeObject* code);
// The same with the sites filled; false where the bytecode is not understood (sites are then empty).
bool analyse(CodeInfo* info);
// What is known at a code unit, or null.
const CodeInfo::Site* site_at(CodeInfo* info, int unit);

using FrameId = std::int32_t;
// One source position, interned: the same (code, unit) gives the same id for the life of the process.
// Needs the GIL: the line is decoded from the code object at the first call for a position. Later calls only read a
// table.
FrameId frame_id(CodeInfo* info, int unit);
// Valid for the life of the process: the list only grows, and never moves what it holds.
const record::Frame& frame_at(FrameId id);

}  // namespace finitude::bindings
