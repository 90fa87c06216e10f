#include "capture/pack_capsule_posix.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <string_view>
#include <vector>

#include "archive/zip_writer_posix.h"
#include "base/file.h"
#include "capture/capsule.h"
#include "capture/capsule_files.h"
#include "capture/capsule_folder_posix.h"

namespace finitude::capture {
namespace {

namespace fs = std::filesystem;

Status unwritable(const std::string& why) { return {StatusCode::kUnwritable, why}; }

// A new file next to `out`, removed with this object unless it was given that name.
class PartialFile {
 public:
  explicit PartialFile(std::string out)
      : out_(std::move(out)), path_(out_ + ".partial-XXXXXX"), descriptor_(::mkostemp(path_.data(), O_CLOEXEC)) {
    if (descriptor_ < 0) error_ = errno;
  }
  ~PartialFile() {
    if (descriptor_ < 0) return;
    ::close(descriptor_);
    if (!is_named_) ::unlink(path_.c_str());
  }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  int descriptor() const noexcept { return descriptor_; }
  Status opened() const { return descriptor_ < 0 ? unwritable(std::strerror(error_)) : Status(); }
  // Readable as any new file is: mkostemp makes one for its owner only.
  Status give_name() {
    const mode_t mask = ::umask(0);
    ::umask(mask);
    if (::fchmod(descriptor_, 0666U & ~mask) != 0 || ::rename(path_.c_str(), out_.c_str()) != 0)
      return unwritable(std::strerror(errno));
    is_named_ = true;
    return {};
  }

 private:
  std::string out_, path_;
  int descriptor_, error_ = 0;
  bool is_named_ = false;
};

// The files of the capsule, none of them missing or damaged.
Status listed_files(const FileSource& source, std::set<std::string>* names) {
  if (const std::vector<std::string> damage = capsule_damage_of(source, names); !damage.empty())
    return {StatusCode::kCorrupt, damage[0]};
  if (!names->contains(kTapeFile)) return {StatusCode::kCorrupt, "is no capsule: capsule.json lists no tape"};
  return {};
}

}  // namespace

Status pack_capsule(const std::string& folder, const std::string& out, const std::atomic<bool>* cancelled) {
  FileSource source;
  if (is_packed_capsule(folder)) return {StatusCode::kInvalidArgument, "is packed already"};
  if (Status status = open_capsule(folder, &source); !status.ok()) return status;
  std::set<std::string> names;
  if (Status status = listed_files(source, &names); !status.ok()) return status;
  std::error_code error;
  if (fs::is_directory(out, error)) return unwritable("it is a folder, name the file that is to be made");
  if (fs::exists(fs::symlink_status(out, error)) && !is_packed_capsule(out))
    return unwritable("it is there already, and no packed capsule");
  PartialFile partial(out);
  if (Status status = partial.opened(); !status.ok()) return status;
  archive::ZipWriter writer(partial.descriptor(), cancelled);
  for (const std::string_view name : kCapsuleFiles) {
    if (!names.contains(std::string(name))) continue;
    const fs::path path = fs::path(folder) / name;
    if (fs::is_symlink(path, error))
      return {StatusCode::kCorrupt, "is not whole: " + path.filename().string() + " is a link"};
    const auto file = archive::File::open(path.string());
    if (!file.ok()) return Status(file.code(), file.why()).of(path.filename().string());
    const archive::Region content{*file, 0, (*file)->bytes()};
    if (Status status = writer.add(std::string(name), content); !status.ok())
      return status.code() == StatusCode::kUnwritable ? status : status.of(path.filename().string());
  }
  if (Status status = writer.finish(); !status.ok()) return status;
  return partial.give_name();
}

Status unpack_capsule(const std::string& file, const std::string& folder, std::uint64_t most_bytes,
                      const std::atomic<bool>* cancelled) {
  PackedCapsule archive;
  if (Status status = archive.open(file, most_bytes); !status.ok()) return status;
  const FileSource source = [&archive](const char* name, std::uint64_t most, std::string* content) {
    return archive.read(name, most, content);
  };
  std::set<std::string> names;
  if (Status status = listed_files(source, &names); !status.ok()) return status;
  if (names != archive.names()) return {StatusCode::kCorrupt, "holds other files than its capsule.json lists"};
  std::error_code error;
  if (fs::exists(fs::symlink_status(folder, error)))
    return {StatusCode::kInvalidArgument, "is not unpacked: " + folder + " is there already"};
  std::string partial;
  if (Status status = make_partial(folder, &partial); !status.ok()) return status;
  Status status;
  for (const std::string& name : names) {
    if (cancelled != nullptr && cancelled->load()) status = Status(StatusCode::kStopped, "was interrupted");
    std::string content;
    if (status.ok()) status = archive.read(name, most_bytes, &content);
    if (status.ok()) {
      if (const Status written = base::write_whole((fs::path(partial) / name).string(), {content}); !written.ok())
        status = unwritable(written.why());
    }
  }
  if (status.ok()) {
    fs::rename(partial, folder, error);
    if (error) status = unwritable(error.message());
  }
  if (!status.ok()) fs::remove_all(partial, error);
  return status;
}

}  // namespace finitude::capture
