#include "capture/capsule.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <set>

#include "base/checksum.h"
#include "base/file.h"
#include "capture/capsule_files.h"
#include "capture/capsule_folder_posix.h"
#include "capture/checked_file_posix.h"
#include "capture/keep_parts.h"
#include "capture/own_checksum.h"
#include "capture/packed_capsule.h"
#include "capture/redact.h"
#include "capture/step_statistics.h"
#include "capture/tape_file.h"

namespace finitude::capture {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::size_t kInline = 64;  // bytes of an unnamed input that stay in the tape
constexpr std::uint64_t kMaxAbout = std::uint64_t{256} << 20, kMaxFile = std::uint64_t{1} << 40;

const char* safetensors_dtype(std::uint8_t dtype) {
  static constexpr const char* kNames[] = {"U8",    "I8",  "I16",   "I32",  "I64",   "F16",   "F32",   "F64",
                                           nullptr, "C64", nullptr, "BOOL", nullptr, nullptr, nullptr, "BF16"};
  return dtype < std::size(kNames) ? kNames[dtype] : nullptr;
}

struct Form {
  std::string dtype;
  std::vector<std::int64_t> shape;
};

// The form of an input: that of a tensor which fills it, with the dimensions in the order in which they lie
// in memory (a weight is often read transposed only).
std::map<StorageId, Form> forms_of(const Tape& tape) {
  std::map<StorageId, Form> forms;
  const auto look = [&](const TensorRef& t) {
    if (t.storage >= tape.storages.size() || t.offset != 0 || safetensors_dtype(t.dtype) == nullptr) return;
    std::vector<std::size_t> order(t.sizes.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return t.strides[a] > t.strides[b]; });
    Form form{safetensors_dtype(t.dtype), {}};
    std::uint64_t expected = 1;
    for (std::size_t d = order.size(); d-- > 0;) {
      if (t.strides[order[d]] != static_cast<std::int64_t>(expected)) return;
      expected *= static_cast<std::uint64_t>(t.sizes[order[d]]);
      form.shape.insert(form.shape.begin(), t.sizes[order[d]]);
    }
    if (expected * item_bytes(t.dtype) == tape.storages[t.storage].size_bytes)
      forms.try_emplace(t.storage, std::move(form));
  };
  for (const Entry& entry : tape.entries) for_each_tensor(entry.args, look);
  return forms;
}

// Its content is here, and goes into a file of its own.
bool is_held(const Storage& storage) {
  return storage.origin == Storage::kInput && storage.bytes.size() == storage.size_bytes && !storage.bytes.empty();
}

// Moves the content of inputs out of the tape, under keys that people can read.
std::vector<NamedTensor> take_tensors(Tape& tape, std::vector<std::string>& contents) {
  const auto forms = forms_of(tape);
  std::vector<NamedTensor> tensors;
  std::set<std::string> keys{"__metadata__"};
  contents.reserve(tape.storages.size());
  for (StorageId id = 0; id < tape.storages.size(); ++id) {
    Storage& storage = tape.storages[id];
    if (!is_held(storage)) continue;
    if (storage.name.empty() && storage.bytes.size() <= kInline) continue;
    std::string key = storage.name.empty() ? "input." + std::to_string(id) : storage.kind + "." + storage.name;
    if (!keys.insert(key).second) keys.insert(key += "#" + std::to_string(id));
    storage.external = key;
    contents.push_back(std::move(storage.bytes));
    NamedTensor tensor{key, "U8", {static_cast<std::int64_t>(contents.back().size())}, contents.back()};
    if (const auto form = forms.find(id); form != forms.end()) {
      tensor.dtype = form->second.dtype;
      tensor.shape = form->second.shape;
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

Status write_part(const fs::path& path, const std::vector<std::string_view>& parts, const CapsuleHooks& hooks,
                  json* entry, CapsuleTimes* times) {
  CheckedFile file;
  Status status = write_checked(path.string(), parts, hooks.cancelled, &file,
                                hooks.trains_on ? ReadBackBy::kTheSame : ReadBackBy::kAnotherThread);
  *entry = {{"bytes", file.bytes}, {"checksum", hex(file.checksum)}};
  times->write += file.write_seconds;
  times->check += file.check_seconds;
  times->bytes += file.bytes;
  return status;
}

Status write_tensors(const fs::path& path, const std::vector<NamedTensor>& tensors, const CapsuleHooks& hooks,
                     json* entry, CapsuleTimes* times) {
  const std::string header = safetensors_header(tensors);
  std::vector<std::string_view> parts{header};
  for (const NamedTensor& tensor : tensors) parts.push_back(tensor.bytes);
  return write_part(path, parts, hooks, entry, times);
}

Status write_about(const fs::path& path, const json& about, const CapsuleHooks& hooks, CapsuleTimes* times) {
  json unused;
  const std::string text = with_own_checksum(about);
  return write_part(path, {text}, hooks, &unused, times);
}

// What of `start` is not among the inputs of the tape. An input of another size holds a part only.
std::vector<NamedTensor> not_on_tape(std::vector<NamedTensor> start, const Tape& tape) {
  std::map<std::string, std::size_t> sizes;  // of two of one name the first has it in the file
  for (const Storage& storage : tape.storages) {
    if (is_held(storage) && !storage.name.empty())
      sizes.try_emplace(storage.kind + "." + storage.name, storage.size_bytes);
  }
  std::set<std::string_view> names;
  std::vector<NamedTensor> rest;
  for (NamedTensor& tensor : start) {
    const auto found = sizes.find(tensor.name);
    if (found != sizes.end() && found->second == tensor.bytes.size()) continue;
    if (names.insert(tensor.name).second) rest.push_back(tensor);
  }
  return rest;
}

// Which of the fills of the tape are memory as it was handed out: what lies there by chance comes up in no other run.
// Its file does not say. Nor need those come up that no call reads, as results of the step that it did not see being
// written: another program is to come to others.
json unwritten_fills(const Tape& tape) {
  json found = json::array();
  std::set<StorageId> read;
  for (const Entry& entry : tape.entries) {
    if (entry.kind == Entry::kCall) for_each_tensor(entry.args, [&](const TensorRef& t) { read.insert(t.storage); });
  }
  std::size_t number = 0;
  for (const Entry& entry : tape.entries) {
    if (entry.kind != Entry::kFill) continue;
    if (entry.traced != kNotTraced || !read.contains(entry.number)) found.push_back(number);
    ++number;
  }
  return found;
}

// *about_written: what its capsule.json holds.
Status write_parts(const fs::path& at, CapsuleDraft draft, const CapsuleHooks& hooks, CapsuleTimes* times,
                   json* about_written) {
  json& about = draft.about;
  json statistics = json::object();
  if (draft.redact) statistics = redact(draft.tape);
  std::vector<std::string> contents;
  const std::vector<NamedTensor> tensors = take_tensors(draft.tape, contents);
  json files = json::object();
  if (!draft.start.empty()) {
    if (Status status = write_tensors(at / kStartFile, draft.start, hooks, &files[kStartFile], times); !status.ok())
      return status;
  }
  if (!tensors.empty()) {
    if (Status status = write_tensors(at / kTensorFile, tensors, hooks, &files[kTensorFile], times); !status.ok())
      return status;
  }
  const std::string bytes = write_tape(draft.tape);
  Tape understood;
  if (Status status = read_tape(bytes, &understood); !status.ok()) return status.of("cannot be written: its tape");
  if (Status status = write_part(at / kTapeFile, {bytes}, hooks, &files[kTapeFile], times); !status.ok()) return status;
  if (const std::string& seen = draft.tape.statistics; !seen.empty()) {
    record::Trace trace;
    if (Status status = read_statistics(seen, &trace); !status.ok())
      return status.of("cannot be written: its statistics");
    if (Status status = write_part(at / kStatisticsFile, {seen}, hooks, &files[kStatisticsFile], times); !status.ok())
      return status;
  }
  about["schema"] = kCapsuleSchema;
  about["redacted"] = draft.redact;
  about["files"] = files;
  if (draft.redact) about["tensors"] = statistics;
  Status status = write_about(at / kAboutFile, about, hooks, times);
  *about_written = std::move(about);
  return status;
}

// The folder has its name and is whole. How a replay came out is put into its capsule.json, which is replaced in one
// step.
void try_replay(const fs::path& folder, json about, const CapsuleHooks& hooks, CapsuleTimes* times) {
  about["replay"] = hooks.tried(folder.string());
  const fs::path beside = folder / (std::string(kAboutFile) + ".replayed");
  std::error_code error;
  fs::remove(beside, error);
  const Status status = write_about(beside, about, {}, times);  // the caller that gives up now gave up the replay
  if (status.ok()) fs::rename(beside, folder / kAboutFile, error);
  if (!status.ok() || error) fs::remove(beside, error);  // the capsule stays as it is
}

Status read_part(const FileSource& source, const json& files, const char* name, std::string* bytes) {
  const auto entry = files.find(name);
  if (entry == files.end()) return Status(StatusCode::kCorrupt, std::string("does not list ") + name);
  if (!entry->is_object() || !entry->contains("bytes") || !(*entry)["bytes"].is_number_unsigned() ||
      !entry->contains("checksum")) {
    return Status(StatusCode::kCorrupt, std::string("says nothing of ") + name);
  }
  const std::uint64_t size = (*entry)["bytes"].get<std::uint64_t>();
  // No more than it is said to have: a damaged file may be of any size.
  if (Status status = source(name, std::min(size, kMaxFile), bytes); !status.ok()) return status.of(name);
  const json& sum = (*entry)["checksum"];
  if (bytes->size() != size || !sum.is_string() ||
      sum.get<std::string>() != hex(base::checksum(bytes->data(), bytes->size()))) {
    return Status(StatusCode::kCorrupt, std::string(name) + " is damaged: its checksum differs");
  }
  return {};
}

// A JSON object with our schema and a list of files.
Status read_about(const FileSource& source, json* about) {
  std::string bytes;
  if (Status status = source(kAboutFile, kMaxAbout, &bytes); !status.ok()) {
    return status.of("is no capsule: capsule.json");
  }
  bool deep = false;
  *about = json::parse(
      bytes, [&](int depth, json::parse_event_t, json&) { return !(deep |= depth > 64); }, false);
  if (deep || !about->is_object()) return Status(StatusCode::kCorrupt, "is no capsule: capsule.json is not its JSON");
  if (const Status status = check_own_checksum(bytes, *about); !status.ok())
    return status.of("is no sound capsule: capsule.json");
  const auto schema = about->find("schema");
  if (schema == about->end() || !schema->is_number_integer())
    return Status(StatusCode::kCorrupt, "is no capsule: capsule.json has no schema");
  if (*schema != kCapsuleSchema) {
    return Status(StatusCode::kUnsupported, "is a capsule of schema " + schema->dump() + "; this program reads " +
                                                std::to_string(kCapsuleSchema));
  }
  const auto files = about->find("files");
  if (files == about->end() || !files->is_object())
    return Status(StatusCode::kCorrupt, "is no capsule: capsule.json lists no files");
  return {};
}

// `bytes` is what the tensors point into.
Status read_tensors(const FileSource& source, const json& files, const char* name, std::string* bytes,
                    std::vector<NamedTensor>* tensors) {
  if (Status status = read_part(source, files, name, bytes); !status.ok()) return status;
  if (Status status = read_safetensors(*bytes, tensors); !status.ok()) return status.of(name);
  return {};
}

}  // namespace

Status open_capsule(const std::string& path, FileSource* files) {
  if (!is_packed_capsule(path)) {
    *files = [at = fs::path(path)](const char* name, std::uint64_t most_bytes, std::string* bytes) {
      return base::read_file((at / name).string(), bytes, most_bytes);
    };
    return {};
  }
  const auto archive = std::make_shared<PackedCapsule>();
  if (Status status = archive->open(path); !status.ok()) return status;
  *files = [archive](const char* name, std::uint64_t most_bytes, std::string* content) {
    return archive->read(name, most_bytes, content);
  };
  return {};
}

std::uint64_t capsule_bytes(const Tape& tape) {
  std::uint64_t sum = (1 << 16) + tape.statistics.size();
  for (const Storage& storage : tape.storages) sum += storage.bytes.size();
  for (const Entry& entry : tape.entries) sum += entry.bytes.size() + 64 * (entry.args.size() + entry.results.size());
  for (const Outcome& outcome : tape.outcomes) sum += outcome.sample.size();
  return sum;
}

std::uint64_t CapsuleDraft::bytes() const {
  std::uint64_t sum = capsule_bytes(tape);
  for (const std::string& copy : copied) sum += copy.size();
  return sum;
}

Status draft_capsule(Tape tape, json about, const CapsuleOptions& options, std::vector<NamedTensor> start,
                     CapsuleDraft* draft) {
  if (!options.redact) keep_parts(tape);
  const std::uint64_t of_statistics = tape.statistics.size();
  std::uint64_t size = capsule_bytes(tape);
  if (!options.redact && size - of_statistics > options.max_bytes)
    return Status(StatusCode::kTooLarge, "would take " + std::to_string(((size - of_statistics) >> 20) + 1) + " MB");
  if ((options.redact ? of_statistics : size) > options.max_bytes) {  // of what is redacted little else is left
    tape.statistics.clear();
    size -= of_statistics;
  }
  start = not_on_tape(std::move(start), tape);
  for (const NamedTensor& tensor : start) size += tensor.bytes.size();
  if (options.redact || size > options.max_bytes) {
    start.clear();
    about.erase("start");
  }
  if (const auto reported = about.find("start"); reported != about.end() && reported->is_object())
    (*reported)["unwritten"] = unwritten_fills(tape);
  draft->start = std::move(start);
  draft->tape = std::move(tape);
  draft->about = std::move(about);
  draft->redact = options.redact;
  return {};
}

void CapsuleDraft::let_go_of_start() {
  copied.clear();
  copied.reserve(start.size());  // short ones lie in the vector itself
  for (NamedTensor& tensor : start) tensor.bytes = copied.emplace_back(tensor.bytes);
}

Status write_capsule(const std::string& folder, CapsuleDraft draft, const CapsuleHooks& hooks, CapsuleTimes* times) {
  CapsuleTimes unused;
  if (times == nullptr) times = &unused;
  // Next to it, so that giving it its name is one step. Two processes cannot take the same: the folder itself is the
  // lock.
  std::string temporary;
  if (Status status = make_partial(folder, &temporary); !status.ok()) return status;
  const fs::path final_path(folder);
  std::error_code error;
  Status status;
  json about;
  try {
    status = write_parts(temporary, std::move(draft), hooks, times, &about);
  } catch (const std::exception& e) {
    status = Status(StatusCode::kUnwritable, std::string("cannot be written: ") + e.what());
  }
  if (status.ok() && fs::exists(final_path, error)) status = Status(StatusCode::kUnwritable, "is there already");
  if (status.ok()) {
    fs::rename(temporary, final_path, error);
    if (error) status = Status(StatusCode::kUnwritable, "cannot get its name: " + error.message());
  }
  if (!status.ok()) {
    fs::remove_all(temporary, error);
    return status;
  }
  try {
    if (hooks.tried) try_replay(final_path, std::move(about), hooks, times);
  } catch (const std::exception&) {  // of the replay: the capsule is there
  }
  return status;
}

Status write_capsule(const std::string& folder, Tape tape, json about, const CapsuleOptions& options,
                     std::vector<NamedTensor> start) {
  CapsuleDraft draft;
  const Status status = draft_capsule(std::move(tape), std::move(about), options, std::move(start), &draft);
  return status.ok() ? write_capsule(folder, std::move(draft)) : status;
}

std::vector<std::string> capsule_damage(const std::string& path) {
  FileSource source;
  if (Status status = open_capsule(path, &source); !status.ok()) return {status.why()};
  std::set<std::string> names;
  return capsule_damage_of(source, &names);
}

std::vector<std::string> capsule_damage_of(const FileSource& source, std::set<std::string>* names) {
  json about;
  if (Status status = read_about(source, &about); !status.ok()) return {status.why()};
  *names = {kAboutFile};
  std::vector<std::string> found;
  for (const char* name : {kTapeFile, kTensorFile, kStartFile, kStatisticsFile}) {
    std::string bytes;
    if (!about["files"].contains(name)) continue;
    names->insert(name);
    if (Status status = read_part(source, about["files"], name, &bytes); !status.ok()) found.push_back(status.why());
  }
  return found;
}

bool is_whole_capsule(const std::string& folder) { return capsule_damage(folder).empty(); }

Status read_capsule(const std::string& path, json* about, Tape* tape, TensorBytes* start) {
  FileSource source;
  if (Status status = open_capsule(path, &source); !status.ok()) return status;
  return read_capsule_from(source, about, tape, start);
}

Status read_capsule_from(const FileSource& source, json* about, Tape* tape, TensorBytes* start) {
  if (Status status = read_about(source, about); !status.ok()) return status;
  const json& files = (*about)["files"];
  std::string bytes;
  if (Status status = read_part(source, files, kTapeFile, &bytes); !status.ok()) return status;
  if (Status status = read_tape(bytes, tape); !status.ok()) return status.of(kTapeFile);
  std::vector<NamedTensor> tensors;
  if (start != nullptr && files.contains(kStartFile)) {
    if (Status status = read_tensors(source, files, kStartFile, &bytes, &tensors); !status.ok()) return status;
    for (const NamedTensor& tensor : tensors) (*start)[tensor.name] = tensor.bytes;
  }
  if (!files.contains(kTensorFile)) return {};
  if (Status status = read_tensors(source, files, kTensorFile, &bytes, &tensors); !status.ok()) return status;
  if (start != nullptr) {
    for (const NamedTensor& tensor : tensors) start->try_emplace(tensor.name, tensor.bytes);
  }
  std::map<std::string_view, std::string_view> by_name;
  for (const NamedTensor& tensor : tensors) by_name[tensor.name] = tensor.bytes;
  for (Storage& storage : tape->storages) {
    if (storage.external.empty()) continue;
    const auto found = by_name.find(storage.external);
    if (found == by_name.end() || found->second.size() != storage.size_bytes) {
      return Status(StatusCode::kCorrupt, std::string(kTensorFile) + " lacks " + storage.external);
    }
    storage.bytes = found->second;
    by_name.erase(found);  // one input each: no file grows in memory
  }
  return {};
}

Status read_capsule_statistics(const std::string& path, json* about, record::Trace* trace, bool* redacted) {
  FileSource source;
  if (Status status = open_capsule(path, &source); !status.ok()) return status;
  return read_capsule_statistics_from(source, about, trace, redacted);
}

Status read_capsule_statistics_from(const FileSource& source, json* about, record::Trace* trace, bool* redacted) {
  if (Status status = read_about(source, about); !status.ok()) return status;
  const json& files = (*about)["files"];
  if (!files.contains(kStatisticsFile))
    return Status(StatusCode::kUnsupported, "holds no statistics of its operations");
  std::string bytes;
  if (Status status = read_part(source, files, kStatisticsFile, &bytes); !status.ok()) return status;
  const Status status = read_statistics(bytes, trace, redacted);
  return status.ok() ? status : status.of(kStatisticsFile);
}

}  // namespace finitude::capture
