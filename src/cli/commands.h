// One function per command, each in a file of its own; they take checked words and return an exit code.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "cli/cli.h"

namespace finitude::cli {

struct Console {
  std::ostream& out;
  std::ostream& err;
  Screen screen;
  bool quiet = false;  // no notes

  // "finitude: WHAT", made printable, after what was written: file names and messages come from outside.
  void complain(const std::string& what) const;
  // The same of what is no failure, unless `quiet`.
  void note(const std::string& what) const;
};

// No file: the newest run, or what it holds. called: what `file` is called in the output; empty: as it is named.
struct ReportWords {
  std::string file, html, called;  // html: where the page goes; empty: no page
  bool json = false;
};

struct DumpWords {
  std::string file;
  bool json = false;    // as it is anyway; of `growth` one document
  bool growth = false;  // a table of what grows in it
};

struct ListWords {
  std::string folder;  // empty: the folder of runs
  bool json = false;
};

struct NewestWords {
  std::string kind;  // run, capsule or recording
  std::size_t count = 1;
};

struct ScanWords {
  std::vector<std::string> paths;  // files and folders
  bool json = false;
};

struct PolicyWords {
  std::string run;  // empty: the newest
  std::string on_alarm = "stop", then, max_bad_share;
  std::uint32_t max_skips = 10, max_bad = 0, cool_down = 100;
  bool json = false;
};

struct PackWords {
  std::string from, to;          // empty: the newest capsule; a name made of that of `from`
  std::uint64_t most_mb = 4096;  // of unpack
};

struct DiffWords {
  std::string a, b;
  std::string names;               // of dumps: the file of --map
  std::vector<std::string> noise;  // of dumps: repeats of A
  bool joins_parts = false;        // of dumps: with those of the other ranks
  bool json = false;
};

int report_command(const ReportWords& words, const Console& console);
int dump_command(const DumpWords& words, const Console& console);
int scan_command(const ScanWords& words, const Console& console);
int list_command(const ListWords& words, const Console& console);
int policy_command(const PolicyWords& words, const Console& console);
int newest_command(const NewestWords& words, const Console& console);
int diff_command(const DiffWords& words, const Console& console);
// Of two checkpoints, which is_checkpoint says of each.
bool is_checkpoint(const std::string& path);
int checkpoint_diff(const DiffWords& words, const Console& console);
// Of two dumps that are compared by the names of their records, which is_dump says of one of them.
bool is_dump(const std::string& path);
int dump_diff(const DiffWords& words, const Console& console);
int incident_command(const std::string& run, const Console& console);
int pack_command(const PackWords& words, const Console& console);
int unpack_command(const PackWords& words, const Console& console);

}  // namespace finitude::cli
