#include "record/ring_posix.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>

#include "base/checksum.h"

namespace finitude::record {
namespace {

constexpr std::size_t kWords = sizeof(RingSlot) / sizeof(std::uint64_t);
static_assert(std::atomic_ref<std::uint64_t>::is_always_lock_free);  // a push waits for nobody, across processes too

// Every word on its own: a reader may see half a record, but never half a word, and no data race.
void store(std::uint64_t& word, std::uint64_t value, std::memory_order order = std::memory_order_relaxed) noexcept {
  std::atomic_ref<std::uint64_t>(word).store(value, order);
}

std::uint64_t load(const std::byte* word) noexcept {
  return std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(word)))
      .load(std::memory_order_relaxed);
}

template <typename Clock>
std::uint64_t now_ns() noexcept {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count());
}

std::string text_of(int error) { return std::generic_category().message(error); }

std::string temporary_name(const std::string& path) { return path + "." + std::to_string(::getpid()) + ".new"; }

// All pages at once, where the system can (Linux 5.14): else each costs the first step that writes into it a fault.
void make_present([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t size_bytes) noexcept {
#ifdef MADV_POPULATE_WRITE
  (void)::madvise(memory, size_bytes, MADV_POPULATE_WRITE);
#endif
}

struct File {
  int fd = -1;
  ~File() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

void RingWriter::refuse(const char* what, int error) noexcept {
  try {
    why_ = std::string(what) + ": " + text_of(error);
  } catch (...) {  // no memory for the words; on_file() still says
  }
}

// Made under a temporary name and renamed when it is whole, so that no reader meets half a header.
bool RingWriter::map_file(const std::string& path) noexcept try {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < size_bytes_) {
    refuse("no space", EFBIG);  // asking for it would raise SIGXFSZ
    return false;
  }
  const std::string temporary = temporary_name(path);
  ::unlink(temporary.c_str());
  File file{::open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600)};
  if (file.fd < 0) {
    refuse("cannot be created", errno);
    return false;
  }
  void* memory = MAP_FAILED;
  int error = 0;
  const char* what = "no space";
  // Some file systems are interrupted by signals; the blocks have to be there before anything is stored in them.
  do error = ::posix_fallocate(file.fd, 0, static_cast<off_t>(size_bytes_));
  while (error == EINTR);
  if (error == 0) {
    memory = ::mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
    if (memory == MAP_FAILED) {
      error = errno;
      what = "cannot be mapped";
    } else {
      make_present(memory, size_bytes_);
    }
  }
  if (error != 0) {
    ::unlink(temporary.c_str());
    refuse(what, error);
    return false;
  }
  header_ = static_cast<RingHeader*>(memory);
  slots_ = reinterpret_cast<RingSlot*>(static_cast<std::byte*>(memory) + kRingHeaderBytes);
  return true;
} catch (...) {
  refuse("no memory", ENOMEM);
  return false;
}

RingWriter::RingWriter(const std::string& path, std::uint64_t capacity) noexcept {
  mask_ = std::bit_ceil(std::clamp<std::uint64_t>(capacity, 1, kMaxRingCapacity)) - 1;
  size_bytes_ = kRingHeaderBytes + static_cast<std::size_t>(mask_ + 1) * sizeof(RingSlot);
  on_file_ = map_file(path);
  if (!on_file_) {
    // Populated now: the first round of pushes must not page-fault for memory that is not there.
    void* memory =
        ::mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) return;
    header_ = static_cast<RingHeader*>(memory);
    slots_ = reinterpret_cast<RingSlot*>(static_cast<std::byte*>(memory) + kRingHeaderBytes);
  }
  RingHeader h{};
  h.magic = kRingMagic;
  h.version = kRingVersion;
  h.header_bytes = kRingHeaderBytes;
  h.record_bytes = sizeof(RingSlot);
  h.pid = static_cast<std::uint32_t>(::getpid());
  h.capacity = mask_ + 1;
  h.started_unix_ns = now_ns<std::chrono::system_clock>();
  h.started_ns = now_ns<std::chrono::steady_clock>();
  h.checksum = base::checksum(&h, offsetof(RingHeader, checksum));
  *header_ = h;
  if (!on_file_) return;
  try {
    const std::string temporary = temporary_name(path);
    if (::rename(temporary.c_str(), path.c_str()) == 0) return;
    refuse("cannot be renamed", errno);
    ::unlink(temporary.c_str());
  } catch (...) {
    refuse("no memory", ENOMEM);
  }
  on_file_ = false;  // the mapping stays: memory like any other, of a file without a name
}

RingWriter::~RingWriter() { let_go(); }

void RingWriter::let_go() noexcept {
  if (header_ != nullptr) ::munmap(header_, size_bytes_);
  header_ = nullptr;
  slots_ = nullptr;
  on_file_ = false;
}

// The order of the stores does not matter to who reads: what does not add up is no record.
void RingWriter::push(const StepRecord& record) noexcept {
  if (slots_ == nullptr) return;
  const std::uint64_t words[7] = {next_ + 1,
                                  record.step,
                                  static_cast<std::uint64_t>(record.flags) << 32 | record.optimizer,
                                  std::bit_cast<std::uint64_t>(record.loss),
                                  std::bit_cast<std::uint64_t>(record.grad_absmax),
                                  std::bit_cast<std::uint64_t>(record.lr),
                                  record.time_ns};
  RingSlot& slot = slots_[next_ & mask_];
  store(slot.number, words[0]);
  store(slot.step, words[1]);
  store(slot.optimizer_flags, words[2]);
  store(slot.loss, words[3]);
  store(slot.grad_absmax, words[4]);
  store(slot.lr, words[5]);
  store(slot.time_ns, words[6]);
  store(slot.check, ring_check(words));
  store(header_->pushed, ++next_, std::memory_order_release);
}

std::span<const std::byte> RingWriter::bytes() const noexcept {
  return {reinterpret_cast<const std::byte*>(header_), header_ == nullptr ? 0 : size_bytes_};
}

bool read_ring(std::span<const std::byte> bytes, RingContents* contents, std::string* error) {
  *contents = RingContents();
  const auto no = [&](const char* why) {
    *error = why;
    return false;
  };
  if (bytes.size() < kRingHeaderBytes) return no("shorter than the header of a ring");
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(std::uint64_t) != 0)
    return no("the memory is not aligned");
  // All but the last field are written before anyone can see the ring; that one is not needed.
  RingHeader h{};
  std::memcpy(&h, bytes.data(), offsetof(RingHeader, pushed));
  if (h.magic != kRingMagic) return no("not a ring");
  if (h.version != kRingVersion) return no("a ring of another version");
  if (h.checksum != base::checksum(&h, offsetof(RingHeader, checksum))) return no("the header of the ring is damaged");
  if (h.header_bytes != kRingHeaderBytes || h.record_bytes != sizeof(RingSlot)) return no("a ring of another layout");
  if (h.capacity == 0 || h.capacity > kMaxRingCapacity || !std::has_single_bit(h.capacity)) {
    return no("the capacity of the ring is out of range");
  }
  if ((bytes.size() - kRingHeaderBytes) / sizeof(RingSlot) < h.capacity) return no("the ring is truncated");
  contents->pid = h.pid;
  contents->capacity = h.capacity;
  contents->started_unix_ns = h.started_unix_ns;
  contents->started_ns = h.started_ns;

  std::vector<std::pair<std::uint64_t, StepRecord>> found;
  std::uint64_t newest = 0;
  for (std::uint64_t i = 0; i < h.capacity; ++i) {
    const std::byte* slot = bytes.data() + kRingHeaderBytes + i * sizeof(RingSlot);
    std::uint64_t words[kWords], any = 0;
    for (std::size_t w = 0; w < kWords; ++w) any |= words[w] = load(slot + w * sizeof(std::uint64_t));
    if (any == 0) continue;  // never written
    std::uint64_t checked[7];
    std::copy_n(words, 7, checked);
    if (words[0] == 0 || words[7] != ring_check(checked) || (words[0] - 1) % h.capacity != i) {
      ++contents->torn;
      continue;
    }
    StepRecord r;
    r.step = words[1];
    r.optimizer = static_cast<std::uint32_t>(words[2]);
    r.flags = static_cast<std::uint32_t>(words[2] >> 32);
    r.loss = std::bit_cast<double>(words[3]);
    r.grad_absmax = std::bit_cast<double>(words[4]);
    r.lr = std::bit_cast<double>(words[5]);
    r.time_ns = words[6];
    newest = std::max(newest, words[0]);
    found.emplace_back(words[0], r);
  }
  contents->overwritten = newest > h.capacity ? newest - h.capacity : 0;
  // A writer may have passed by while we read: slots read early are then older than what lies a round before the
  // newest.
  std::erase_if(found, [&](const auto& entry) { return entry.first <= contents->overwritten; });
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second.step, a.first) < std::pair(b.second.step, b.first);
  });
  contents->records.reserve(found.size());
  for (const auto& [number, record] : found) contents->records.push_back(record);
  return true;
}

bool read_ring_file(const std::string& path, RingContents* contents, std::string* error) {
  *contents = RingContents();
  const auto no = [&](const std::string& why) {
    *error = why;
    return false;
  };
  // A pipe in the place of the file must not block its reader.
  File file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) return no(text_of(errno));
  struct stat status {};
  if (::fstat(file.fd, &status) != 0) return no(text_of(errno));
  if (!S_ISREG(status.st_mode)) return no("not a regular file");
  constexpr std::size_t kMost = kRingHeaderBytes + static_cast<std::size_t>(kMaxRingCapacity) * sizeof(RingSlot);
  const std::size_t size = std::min(static_cast<std::size_t>(std::max<off_t>(status.st_size, 0)), kMost);
  std::vector<std::uint64_t> buffer((size + 7) / 8);  // words, for their alignment
  auto* bytes = reinterpret_cast<std::byte*>(buffer.data());
  std::size_t have = 0;
  while (have < size) {
    const ssize_t n = ::pread(file.fd, bytes + have, size - have, static_cast<off_t>(have));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return no(text_of(errno));
    if (n == 0) break;
    have += static_cast<std::size_t>(n);
  }
  return read_ring({bytes, have}, contents, error);
}

}  // namespace finitude::record
