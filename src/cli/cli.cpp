// The words of the command line: which command, which options, and what was probably meant.
#include "cli/cli.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <exception>
#include <iostream>
#include <iterator>
#include <ostream>
#include <sstream>
#include <utility>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/nearest.h"
#include "cli/output_posix.h"
#include "cli/replay/replay_options.h"
#include "cli/screen_posix.h"
#include "show/printable.h"

namespace finitude::cli {
namespace {

constexpr const char* kAbout =
    "Reads what finitude recorded, on any machine: no torch, no Python, no network.\n\n"
    "Every run leaves a report (JSON) in its folder below finitude-runs;\n"
    "`finitude run --report FILE ...` writes a further one. Start with the newest:\n\n"
    "  {} list                       the runs in finitude-runs\n"
    "  {} report                     the newest of them\n"
    "  {} report RUN --html page.html    the same as one page\n"
    "  {} dump | head                the operations of a recorded step\n"
    "  {} diff A B                   where two such steps part\n"
    "  {} scan FILE|DIR              NaN and Inf in checkpoints\n";
constexpr const char* kExits =
    "Exit codes: 0 done, 1 what diff compares parts, or scan found a bad value, 2\n"
    "usage, 3 the input is unreadable or corrupt, 4 it cannot be done here. What a\n"
    "report says is never an exit code: a report of an alarm is shown with 0.";
constexpr const char* kAboutScan =
    "  finitude scan model.pt              one line for each bad tensor\n"
    "  finitude scan checkpoints/          every checkpoint below the folder\n"
    "  finitude scan -q model.pt && cp model.pt good.pt\n\n"
    "A line has the tensor, its dtype and shape, the numbers of NaN, +Inf and -Inf,\n"
    "and the index of the first of them. Nothing in a file is executed, and no more\n"
    "than some MiB of it are in memory. Values of integers are not read.\n\n"
    "Exit codes: 0 all values are finite, 1 a bad one was found, 2 usage, 3 a file\n"
    "is unreadable, damaged or no checkpoint, 4 a format that cannot be read here.";
constexpr const char* kAboutPack =
    "`finitude replay`, `report`, `dump` and `diff` take the file as it is. A packed\n"
    "capsule of that name is replaced; any other file stays.";
constexpr std::size_t kDescription = 49;  // columns of a description: the rest of 80 holds what it is of

// Breaks lines between words; older versions of the parser print a description as it is.
std::string wrapped(const std::string& text) {
  std::istringstream words(text);
  std::string out, word;
  std::size_t column = 0;
  while (words >> word) {
    const bool breaks = column != 0 && column + 1 + word.size() > kDescription;
    if (column != 0) out += breaks ? '\n' : ' ';
    column = breaks || column == 0 ? word.size() : column + 1 + word.size();
    out += word;
  }
  return out;
}

std::string with_program(std::string text, const std::string& program) {
  for (std::size_t pos = 0; (pos = text.find("{}", pos)) != std::string::npos; pos += program.size())
    text.replace(pos, 2, program);
  return text;
}

// Long option names of the command, or the names of all commands.
std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // not for people
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}
std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_group().empty()) names.push_back(command->get_name());
  }
  return names;
}

std::string meant(const std::string& word, const std::vector<std::string>& words) {
  const std::string near = nearest(word.substr(0, word.find('=')), words);
  if (!near.empty()) return "; did you mean " + near + "?";
  std::string all;
  for (const std::string& each : words) all += (all.empty() ? "" : ", ") + each;
  return "; there is " + all;
}

int usage(const Console& console, const std::string& program, const std::string& what) {
  console.complain(what);
  console.err << "`" << program << " --help` explains every word.\n";
  return kUsage;
}

struct Words {
  ReportWords report;
  DumpWords dump;
  DiffWords diff;
  ScanWords scan;
  ListWords list;
  PolicyWords policy;
  NewestWords newest;
  PackWords pack, unpack;
  std::string incident;
  bool no_colour = false, quiet = false;
};

void describe(CLI::App& app, Words& words) {
  const auto no_colour = [&](CLI::App* command) {
    command->add_flag("--no-colour,--no-color", words.no_colour, "no colours, also on a terminal");
  };
  const auto quiet = [&](CLI::App* command, const char* what) {
    command->add_flag("-q,--quiet", words.quiet, wrapped(what));
  };
  CLI::App* report =
      app.add_subcommand("report", wrapped("show a report: what went wrong, where it was born, why, and the fix"));
  report->add_option("FILE", words.report.file,
                     wrapped("the report, or the folder of a run or of a capsule; without one, the newest run"));
  report->add_option("--html", words.report.html, wrapped("write it as one self-contained page"))->type_name("OUT");
  report->add_flag("--json", words.report.json, "print the checked JSON");
  no_colour(report);
  quiet(report, "no notes: which run was taken, where the page is");
  CLI::App* dump = app.add_subcommand("dump", wrapped("print every op of the step in a report's trace or a capsule, "
                                                      "one JSON line each"));
  dump->add_option("FILE", words.dump.file,
                   wrapped("a report made with --level trace, the folder of its run or of a capsule, or a file of "
                           "JSON lines to check; without one, the newest recording"));
  dump->add_flag("--growth", words.dump.growth,
                 wrapped("a table instead: by how much each record makes its values larger, and where NaN or Inf is "
                         "born, the worst first; then the tree of modules"));
  dump->add_flag("--json", words.dump.json, "JSON lines, as without; of --growth one document");
  quiet(dump, "no note of which recording was taken");
  // For agents: the path below the folder that they see.
  report->add_option("--called", words.report.called)->group("");
  CLI::App* list =
      app.add_subcommand("list", wrapped("list the runs in a folder, newest first, also running and killed ones"));
  list->add_option("DIR", words.list.folder,
                   wrapped("the folder that --runs named; without one, FINITUDE_RUNS or finitude-runs"));
  list->add_flag("--json", words.list.json, "one JSON array, one object for each run");
  quiet(list, "only the paths of the runs, one each line");
  CLI::App* diff =
      app.add_subcommand("diff", "say where two traced steps part, and why; or how\ntwo checkpoints differ");
  diff->add_option("A", words.diff.a,
                   wrapped("a report made with --level trace, a run's folder with one, or the folder of a capsule; "
                           "without A and B, the newest two recordings"));
  diff->add_option("B", words.diff.b, "the other");
  diff->add_option("--map", words.diff.names, wrapped("names of modules in A and in B, a line for each: `A.* = B.*`"))
      ->type_name("FILE");
  diff->add_option("--noise", words.diff.noise, wrapped("a dump of a repeat of A: what they differ by is noise"))
      ->type_name("DUMP")
      ->expected(1)
      ->take_all();
  diff->add_flag("--join", words.diff.joins_parts,
                 wrapped("put the parts that the ranks of each dump hold, and micro-batches, together first"));
  diff->add_flag("--json", words.diff.json, "the whole outcome as JSON");
  no_colour(diff);
  quiet(diff, "only the exit code, failures, and --json where given");
  CLI::App* scan = app.add_subcommand(
      "scan", wrapped("say which tensors of checkpoints hold NaN, Inf, or values that cannot be, such as a negative "
                      "second moment"));
  scan->footer(kAboutScan);
  scan->add_option("PATH", words.scan.paths,
                   wrapped("files of torch.save and safetensors, folders of DCP, or folders with any of these below"));
  scan->add_flag("--json", words.scan.json, "the whole outcome as JSON");
  quiet(scan, "only the exit code, failures, and --json where given");
  CLI::App* policy = app.add_subcommand(
      "policy", wrapped("say what other policies would have done about the alarms of a run, step by step"));
  policy->add_option("RUN", words.policy.run, wrapped("the folder of the run; without one, the newest run"));
  policy->add_option("--on-alarm", words.policy.on_alarm, wrapped("stop, skip, warn, raise or rollback (stop)"))
      ->type_name("POLICY");
  policy->add_option("--then", words.policy.then, wrapped("the policies that follow, with commas"))->type_name("NAMES");
  policy->add_option("--max-skips", words.policy.max_skips, wrapped("bad steps in a row under one policy (10)"))
      ->type_name("N");
  policy->add_option("--max-bad", words.policy.max_bad, wrapped("bad steps in all; 0: no limit (0)"))->type_name("N");
  policy
      ->add_option("--max-bad-share", words.policy.max_bad_share,
                   wrapped("share of bad steps of the last 100, or of W with P/W"))
      ->type_name("P[/W]");
  policy
      ->add_option("--cool-down", words.policy.cool_down,
                   wrapped("good steps after which the first policy holds again (100)"))
      ->type_name("N");
  policy->add_flag("--json", words.policy.json, "every decision as JSON");
  quiet(policy, "no notes on stderr");
  CLI::App* pack = app.add_subcommand("pack", wrapped("put the folder of a capsule into one file"));
  pack->footer(kAboutPack);
  pack->add_option("CAPSULE", words.pack.from, wrapped("the folder; without one, the newest capsule"));
  pack->add_option("FILE", words.pack.to, wrapped("the file that is made (CAPSULE.capsule.zip)"));
  quiet(pack, "no note of which capsule was taken");
  CLI::App* unpack = app.add_subcommand("unpack", wrapped("make the folder of a packed capsule again"));
  unpack->add_option("FILE", words.unpack.from, wrapped("the packed capsule"))->required();
  unpack->add_option("FOLDER", words.unpack.to, wrapped("the folder that is made (FILE without its suffix)"));
  unpack->add_option("--max-mb", words.unpack.most_mb, wrapped("refuse what takes more megabytes in all (4096)"))
      ->check(CLI::Range(std::uint64_t{1}, (std::uint64_t{1} << 24) - 1))
      ->type_name("N");
  CLI::App* newest = app.add_subcommand("newest", "what is read where no path is named")->group("");
  newest->add_option("KIND", words.newest.kind);
  newest->add_option("COUNT", words.newest.count);
  quiet(newest, "no note");
  CLI::App* incident = app.add_subcommand("incident", "answer a question, read as JSON, about a run")->group("");
  incident->add_option("RUN", words.incident);
  for (CLI::App* command : {report, dump, list, diff, scan, policy, pack, unpack, newest, incident})
    command->allow_extras();
}

int command(const CLI::App& chosen, const Words& words, Console console, const std::string& program) {
  const std::string name = chosen.get_name();
  if (const std::vector<std::string> extra = chosen.remaining(); !extra.empty()) {
    // A misspelt option explains more than the words that came to stand free because of it.
    const auto option = std::find_if(extra.begin(), extra.end(),
                                     [](const std::string& word) { return word.size() > 1 && word[0] == '-'; });
    if (option != extra.end())
      return usage(console, program, name + " has no option " + *option + meant(*option, options_of(chosen)));
    return usage(
        console, program,
        name + (name == "diff" || name == "pack" || name == "unpack" ? " takes two paths; " : " takes one path; ") +
            extra[0] + " is one too many");
  }
  console.quiet = words.quiet;
  if (words.no_colour) console.screen.colour = false;
  if (name == "list") return list_command(words.list, console);
  if (name == "policy") return policy_command(words.policy, console);
  if (name == "newest") return newest_command(words.newest, console);
  if (name == "incident") return incident_command(words.incident, console);
  if (name == "pack") return pack_command(words.pack, console);
  if (name == "unpack") return unpack_command(words.unpack, console);
  if (name == "report") return report_command(words.report, console);
  if (name == "dump") return dump_command(words.dump, console);
  if (name == "scan") {
    if (words.scan.paths.empty()) return usage(console, program, "scan what? scan FILE|DIR...");
    return scan_command(words.scan, console);
  }
  if (!words.diff.a.empty() && words.diff.b.empty())
    return usage(console, program, "diff needs the two files to compare, A and B, or none");
  return diff_command(words.diff, console);
}

// The same words without `--`: what follows it is a path, also where it begins like an option.
std::vector<std::string> with_paths(std::vector<std::string> args) {
  const auto dashes = std::find(args.begin(), args.end(), "--");
  if (dashes == args.end()) return args;
  for (auto path = dashes + 1; path != args.end(); ++path) {
    if (path->starts_with('-')) path->insert(0, "./");
  }
  args.erase(dashes);
  return args;
}

}  // namespace

void Console::complain(const std::string& what) const {
  out.flush();
  err << "finitude: " << show::printable(what, screen.unicode) << '\n';
}

void Console::note(const std::string& what) const {
  if (!quiet) complain(what);
}

int run(const std::string& program, const std::vector<std::string>& args, std::ostream& out, std::ostream& err,
        const Screen& screen) {
  const Console console{.out = out, .err = err, .screen = screen};
  try {
    if (args == std::vector<std::string>{"replay", "--help"}) {
      out << replay_usage("finitude replay");
      return kDone;
    }
    CLI::App app(with_program(kAbout, program), program);
    Words words;
    app.set_version_flag("--version", "finitude " FINITUDE_VERSION, "print the version");
    app.footer(kExits);
    app.allow_extras();
    app.require_subcommand(0, 1);  // a path may have the name of a command
    describe(app, words);
    try {
      std::vector<std::string> left = with_paths(args);
      std::reverse(left.begin(), left.end());
      app.parse(std::move(left));
    } catch (const CLI::Success& asked) {  // --help, --version
      return app.exit(asked, out, err);
    } catch (const CLI::ParseError& error) {
      return usage(console, program, error.what());
    }
    if (const std::vector<CLI::App*> chosen = app.get_subcommands(); !chosen.empty())
      return command(*chosen[0], words, console, program);
    if (const std::vector<std::string> extra = app.remaining(); !extra.empty()) {
      const bool option = extra[0].rfind('-', 0) == 0;
      return usage(console, program,
                   (option ? "no option " : "no command ") + extra[0] +
                       meant(extra[0], option ? options_of(app) : commands_of(app)));
    }
    err << app.help();
    return kUsage;
  } catch (const std::exception& error) {  // memory, or a stream that broke
    console.complain(std::string("cannot go on: ") + error.what());
    return kCannotHere;
  }
}

int main(int argc, char** argv) {
  std::string program = argc > 0 && argv[0] ? argv[0] : "";
  program = program.substr(program.rfind('/') + 1);
  const bool plain = std::all_of(program.begin(), program.end(),
                                 [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.'; });
  if (program.empty() || !plain) program = "finitude";
  hold_standard_descriptors();
  const Screen screen = screen_of_stdout();
  Output buffer(1);
  std::ostream out(&buffer);
  const int code =
      run(program, std::vector<std::string>(argv + std::min(argc, 1), argv + argc), out, std::cerr, screen);
  out.flush();
  if (buffer.error() == 0) return code;
  std::cerr << "finitude: cannot write to standard output: " << std::strerror(buffer.error()) << '\n';
  return kCannotHere;
}

}  // namespace finitude::cli
