// One large scan by several threads: the memory is cut into pieces, and each thread takes the next piece that
// nobody has, so that a thread that wakes late costs no more than what it did not take.
#include <algorithm>
#include <atomic>

#include "finitude/scan.h"
#include "sense/format.h"
#include "sense/norm_scan.h"
#include "sense/scan_with.h"

namespace finitude::sense {
namespace {

constexpr std::size_t kMostPieces = 64;             // their results lie on the stack
constexpr std::size_t kLeastPieceBytes = 64 << 10;  // a piece is worth taking
constexpr std::size_t kPieceStep = 4096;            // elements: pieces begin where a vector of any dtype may

template <typename Result>
struct Job {
  const unsigned char* data;
  std::size_t numel, element_bytes, piece, pieces;  // piece: elements in each but the last
  DType dtype;
  std::atomic<std::size_t> next{0};
  std::atomic<bool> seen_bad{false};
  Result results[kMostPieces] = {};
};

// What a thread knows from the pieces it has had.
template <typename Result>
struct Known {};
template <>
struct Known<Health> {
  RawTotals totals;
};

Quick scan_piece(const void* data, std::size_t numel, DType dtype, Known<Quick>&) noexcept {
  return quick_scan(data, numel, dtype);
}
Health scan_piece(const void* data, std::size_t numel, DType dtype, Known<Health>& known) noexcept {
  return full_scan_part(kernels(), data, numel, dtype, known.totals);
}

Squares scan_piece(const void* data, std::size_t numel, DType dtype, Known<Squares>&) noexcept {
  return squares_with(kernels(), data, numel, dtype);
}

// A quick scan is over as soon as one thread has seen a non-finite value; a full one never is.
bool is_enough(const Quick& quick) noexcept { return quick.bad; }
bool is_enough(const Health&) noexcept { return false; }
bool is_enough(const Squares& squares) noexcept { return squares.bad; }

template <typename Result>
void take_pieces(void* context) noexcept {
  auto& job = *static_cast<Job<Result>*>(context);
  Known<Result> known;
  while (!job.seen_bad.load(std::memory_order_relaxed)) {
    const std::size_t index = job.next.fetch_add(1, std::memory_order_relaxed);
    if (index >= job.pieces) return;
    const std::size_t begin = index * job.piece;
    Result& result = job.results[index];
    result = scan_piece(job.data + begin * job.element_bytes, std::min(job.piece, job.numel - begin), job.dtype, known);
    if (is_enough(result)) job.seen_bad.store(true, std::memory_order_relaxed);
  }
}

template <typename Result>
void scan_shared(Job<Result>& job, Threads threads) noexcept {
  const std::size_t least = kLeastPieceBytes / job.element_bytes;
  const std::size_t even = std::max(least, (job.numel + kMostPieces - 1) / kMostPieces);
  job.piece = (even + kPieceStep - 1) / kPieceStep * kPieceStep;
  job.pieces = (job.numel + job.piece - 1) / job.piece;
  threads.run(take_pieces<Result>, &job);
  take_pieces<Result>(&job);  // nothing is left unless the host could not spare a single thread
}

// Not worth it whatever the dtype is: known without a look into the table, as small ones are many.
bool is_small(std::size_t numel) noexcept {
  constexpr std::size_t kLargestElement = 16;
  return numel < kSharedScanBytes / kLargestElement;
}

bool is_worth_sharing(std::size_t numel, std::size_t element_bytes, Threads threads) noexcept {
  return threads.run != nullptr && element_bytes != 0 && numel >= kSharedScanBytes / element_bytes;
}

std::size_t element_bytes_of(DType dtype) noexcept {
  return info(dtype).size_bytes * static_cast<std::size_t>(info(dtype).reals_per_element);
}

}  // namespace

Quick quick_scan(const void* data, std::size_t numel, DType dtype, Threads threads) noexcept {
  if (is_small(numel)) return quick_scan(data, numel, dtype);
  const std::size_t element_bytes = element_bytes_of(dtype);
  if (!is_worth_sharing(numel, element_bytes, threads)) return quick_scan(data, numel, dtype);
  Job<Quick> job{static_cast<const unsigned char*>(data), numel, element_bytes, 0, 0, dtype};
  scan_shared(job, threads);
  Quick all;
  for (std::size_t i = 0; i < job.pieces; ++i) {
    all.bad = all.bad || job.results[i].bad;
    if (order_key(job.results[i].absmax) > order_key(all.absmax)) all.absmax = job.results[i].absmax;
  }
  return all;
}

Health full_scan(const void* data, std::size_t numel, DType dtype, Threads threads) noexcept {
  if (is_small(numel)) return full_scan(data, numel, dtype);
  const std::size_t element_bytes = element_bytes_of(dtype);
  if (!is_worth_sharing(numel, element_bytes, threads)) return full_scan(data, numel, dtype);
  Job<Health> job{static_cast<const unsigned char*>(data), numel, element_bytes, 0, 0, dtype};
  scan_shared(job, threads);
  Health all;
  for (std::size_t i = 0; i < job.pieces; ++i) all = merge(all, job.results[i]);
  return all;
}

Squares squares(const void* data, std::size_t numel, DType dtype, Threads threads) noexcept {
  const auto alone = [&] { return squares_with(kernels(), data, numel, dtype); };
  if (is_small(numel)) return alone();
  const std::size_t element_bytes = element_bytes_of(dtype);
  if (!is_worth_sharing(numel, element_bytes, threads)) return alone();
  Job<Squares> job{static_cast<const unsigned char*>(data), numel, element_bytes, 0, 0, dtype};
  scan_shared(job, threads);
  Squares all;
  for (std::size_t i = 0; i < job.pieces; ++i) all = merge(all, job.results[i]);
  return all;
}

}  // namespace finitude::sense
