// Scans the gradients of a whole model on a CUDA device in one launch: is anything NaN or Inf, where, and how large is
// the rest.
//
// A C interface (C99) to the library libfinitude_cuda, which does not use PyTorch. Inputs are raw device pointers and a
// stream; results arrive in pinned host memory that the device writes. In the steady state (same tensors, nothing bad)
// a scan is one kernel launch and one event record on the caller's stream: no allocation, no copy, no wait.
//
// Order of calls:
//
//   finitude_cuda_open
//   for each step: finitude_cuda_set (cheap if nothing changed), finitude_cuda_scan, later finitude_cuda_poll
//   finitude_cuda_close
//
// Status. Functions return a finitude_cuda_status and never throw, abort or print. After a status other than OK, output
// arguments hold nothing of use; finitude_cuda_open sets *list to null then, unless `list` or `device` is invalid.
//
// Device. Each function makes the list's device current and restores the caller's before it returns.
//
// Threads. One thread at a time per list, except where a function says otherwise; different lists may be used from
// different threads at once.
//
// Streams. A stream is a cudaStream_t of the list's device; null is the legacy default stream. A list may be used on
// one stream after another: events keep the order of its calls.
//
// Results. Sums are taken in a fixed order, maxima and counts are integers: equal inputs give equal bits.
#ifndef FINITUDE_CUDA_SCAN_H_
#define FINITUDE_CUDA_SCAN_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Version of this interface. A program that loads the library at run time compares it with finitude_cuda_abi().
#define FINITUDE_CUDA_ABI 3u
// Number of scans and values of a list, outside of graphs, whose summaries finitude_cuda_poll can still read.
#define FINITUDE_CUDA_RING 128u
// Number of scans of a list whose results per tensor finitude_cuda_fetch can still read.
#define FINITUDE_CUDA_ROWS 8u
// Scans that may be captured into graphs, per list.
#define FINITUDE_CUDA_CAPTURED 16u
// Tensors that one finitude_cuda_ahead may read: their table is an argument of the kernel.
#define FINITUDE_CUDA_AHEAD 80u

// What functions return.
typedef enum finitude_cuda_status {
  FINITUDE_CUDA_OK = 0,
  // poll, query, passed: the device has not finished this work yet.
  FINITUDE_CUDA_NOT_READY = 1,
  // poll, wait, fetch: the result was overwritten by later scans, or there never was such a ticket.
  FINITUDE_CUDA_LOST = 2,
  // A null argument, an unknown dtype, a pointer that is not aligned to a real of its dtype, or a size above the
  // limits.
  FINITUDE_CUDA_INVALID = 3,
  // The call would allocate, upload or wait while the stream is captured into a graph, or a graph holds what would
  // move.
  FINITUDE_CUDA_CAPTURE = 4,
  // A CUDA call failed, or host memory is exhausted: finitude_cuda_why has the reason.
  FINITUDE_CUDA_DEVICE = 5
} finitude_cuda_status;

// One dense stretch of device memory. It is not owned.
typedef struct finitude_cuda_tensor {
  // Device pointer, aligned to the size of a real of `dtype`. May be null if numel is 0.
  const void* data;
  // Elements, at most 2^48. A complex element counts once and is scanned as two reals.
  uint64_t numel;
  // A finitude::sense::DType (dtype.h). Memory of kOther is not read and never bad.
  uint32_t dtype;
  // 0: a scan reads this tensor. Else 1 + slot: the scan takes the last result of finitude_cuda_ahead for that slot,
  // and ignores the fields above.
  uint32_t ahead;
} finitude_cuda_tensor;

// Result of one tensor. Counts are of reals: two for each complex element.
typedef struct finitude_cuda_health {
  uint64_t nan, pos_inf, neg_inf;
  // Largest finite magnitude; 0 if there are no finite values.
  double absmax;
  // Sum of the squares of the finite values, in float64.
  double sum_sq;
} finitude_cuda_health;

// Result of one scan or value.
typedef struct finitude_cuda_summary {
  // The ticket of this scan.
  uint64_t ticket;
  // All tensors together, as in finitude_cuda_health.
  uint64_t nan, pos_inf, neg_inf;
  double absmax, sum_sq;
  // Of finitude_cuda_scan_value: the first real, finite or not. Else 0.
  double value;
  // Tensors with at least one NaN or Inf.
  uint32_t bad_tensors;
  // Index of the first of them. Undefined if bad_tensors is 0.
  uint32_t first_bad;
  // 1: `unless_finite` was finite, so the tensors were not read.
  uint32_t skipped;
  // How often this scan has run: 1, or more if a graph replays it.
  uint32_t runs;
  // Content of *found_inf before this scan wrote it; 0 without found_inf.
  float found_inf_before;
  // 1: a value noted since the last `clear_noted` was NaN or Inf when this scan ran.
  uint32_t noted_bad;
} finitude_cuda_summary;

// Options of one scan. All fields 0 or null are the defaults.
typedef struct finitude_cuda_options {
  // A float32 on the device, or null. The scan writes 1.0 if a tensor is bad: the flag that PyTorch's fused optimizers
  // read. Has to live until the stream has passed the scan.
  float* found_inf;
  // 0: 0.0 is written if nothing is bad. 1: the larger of old and new value is written, for a flag that another one has
  // set.
  uint32_t keep_larger;
  // 1: a bad noted value (finitude_cuda_scan_value) sets found_inf too.
  uint32_t count_noted;
  // 1: noted values are forgotten after this scan.
  uint32_t clear_noted;
  // Not used.
  uint32_t reserved;
  // Data null: no such value. Else one real on the device, such as a norm of the same tensors. If it is finite when the
  // scan runs, the tensors are not read, none is bad, and summary.absmax is its magnitude.
  finitude_cuda_tensor unless_finite;
} finitude_cuda_options;

// A list of tensors with the memory for its results. Opaque.
typedef struct finitude_cuda_list finitude_cuda_list;

// The FINITUDE_CUDA_ABI that the library was built with. Any thread.
uint32_t finitude_cuda_abi(void);

// Makes an empty list on `device` (a CUDA ordinal) and stores it in *list. Allocates device memory and pinned memory;
// may wait for the device. The caller owns the list and closes it. INVALID: `list` is null, `device` is negative, or
// host memory is exhausted. DEVICE: see finitude_cuda_why(NULL) in this thread.
int finitude_cuda_open(int device, finitude_cuda_list** list);
// Waits until the device has done the list's work, then frees it. Null is allowed. No graph that holds a scan of the
// list may run afterwards.
void finitude_cuda_close(finitude_cuda_list* list);

// Sets the tensors that are scanned from now on. Indices in results are indices into `tensors`; the array is copied.
// `tensors` may be null if count is 0.
//
// Costs one comparison if nothing changed. If addresses changed: one asynchronous upload on `stream`, which waits only
// if the host is 8 uploads ahead of the device. If the list outgrows its memory: it allocates twice what is needed and
// waits for its own work; the results per tensor of earlier scans are lost. CAPTURE: it would have to upload while
// `stream` is captured, or to allocate although a graph holds a scan of the list. After DEVICE the list is empty.
//
// The memory of the tensors is read by scans only. It may be freed and reused as soon as the stream has passed the last
// scan; PyTorch's allocator ensures that for its own streams.
int finitude_cuda_set(finitude_cuda_list* list, const finitude_cuda_tensor* tensors, uint32_t count, void* stream);

// Scans the tensors of the list: one launch on `stream`, no wait. `options` may be null. `ticket` (not null) gets the
// name of this scan for the functions below; it is never 0.
//
// If `stream` is being captured into a graph, the scan becomes a part of the graph, with the tensors that the list has
// now; each replay renews the same result. No event is recorded then, so the caller keeps replays and other scans of
// this list in order. CAPTURE: FINITUDE_CUDA_CAPTURED scans are captured already, or a tensor was read ahead. INVALID:
// `unless_finite` cannot be scanned, or a slot was not reserved.
int finitude_cuda_scan(finitude_cuda_list* list, void* stream, const finitude_cuda_options* options, uint64_t* ticket);

// Scans one small tensor outside of the list, such as a loss: one launch of one block, for up to some 100,000 elements.
// Whether it is bad is noted for the scans that follow (options.count_noted). In its summary bad_tensors is 0 or 1.
// `tensor` is read before the call returns, its memory when the stream gets there.
int finitude_cuda_scan_value(finitude_cuda_list* list, void* stream, const finitude_cuda_tensor* tensor,
                             uint64_t* ticket);

// Writes *found_inf (a float32 on the device; null: nothing is written) from the result of the list's last scan in
// stream order and from the values noted until then, by the rules of finitude_cuda_options. Then noted values are
// forgotten. One launch, no wait. For gradients that were scanned before clipping and need no second scan.
int finitude_cuda_found_inf(finitude_cuda_list* list, void* stream, float* found_inf, uint32_t keep_larger,
                            uint32_t count_noted);

// ---- Reading ahead --------------------------------------------------------------------------------------------------
//
// For tensors that are complete long before the others: they are read on a stream of the list's own, while the caller's
// stream does its next work. A later scan takes the results (finitude_cuda_tensor.ahead) and need not read these
// tensors. One thread may call finitude_cuda_ahead and finitude_cuda_join while another one calls the functions above
// on the same list, except for finitude_cuda_reserve. Failures here do not set finitude_cuda_why, except in reserve.

// Makes room for slots 0 .. slots - 1, and for calls that read up to `bytes` each. Costs one comparison if there is
// room. Else it waits for scans and reads under way and allocates twice what is needed; all slots are empty then.
int finitude_cuda_reserve(finitude_cuda_list* list, uint32_t slots, uint64_t bytes);
// Reads `count` tensors into their slots: one launch on the list's own stream, after all work that `stream` has now and
// after earlier calls. count is 1 .. FINITUDE_CUDA_AHEAD, no tensor is empty, and `ahead` of each is 1 + slot. No
// allocation, wait or upload. The memory must not change until a stream for which finitude_cuda_join was called has
// passed that point. INVALID: there is no room. CAPTURE: `stream` is being captured.
int finitude_cuda_ahead(finitude_cuda_list* list, const finitude_cuda_tensor* tensors, uint32_t count, void* stream);
// Later work on `stream` comes after everything that was read ahead so far. A scan that takes such results does this by
// itself. The host waits only if `stream` is being captured: a graph must not depend on work outside of it.
int finitude_cuda_join(finitude_cuda_list* list, void* stream);
// Has everything that was read ahead been read? OK, NOT_READY or DEVICE. Does not wait.
int finitude_cuda_passed(finitude_cuda_list* list);

// ---- Results --------------------------------------------------------------------------------------------------------

// Copies the summary of `ticket` if the device has written it, else returns NOT_READY or LOST. Only reads pinned
// memory: makes no CUDA call and never waits. `summary` is not null.
int finitude_cuda_poll(finitude_cuda_list* list, uint64_t ticket, finitude_cuda_summary* summary);
// As poll, but first blocks the host until the list's last launch is done. Not for scans in a graph.
int finitude_cuda_wait(finitude_cuda_list* list, uint64_t ticket, finitude_cuda_summary* summary);
// Is the list's last launch outside of graphs done? OK, NOT_READY, or DEVICE (the device has failed, and it never will
// be). Does not wait.
int finitude_cuda_query(finitude_cuda_list* list);
// Copies the results of the first `count` tensors of a finished scan into `health` (host memory). Waits for the copy:
// meant for the rare bad step. LOST after FINITUDE_CUDA_ROWS later scans, or if the list has outgrown its memory since.
// NOT_READY as poll. All results are 0 if the scan was skipped.
int finitude_cuda_fetch(finitude_cuda_list* list, uint64_t ticket, finitude_cuda_health* health, uint32_t count);

// 1: `stream` of `device` is being captured into a graph. 0: it is not, or CUDA cannot say. Does not wait. Any thread.
int finitude_cuda_capturing(int device, void* stream);
// The reason of the last DEVICE of the list in one line; "" if there was none. Null: of the last finitude_cuda_open in
// this thread. Valid until the next call for that list (null: of open). Not to be freed.
const char* finitude_cuda_why(const finitude_cuda_list* list);

#ifdef __cplusplus
}
#endif

#endif  // FINITUDE_CUDA_SCAN_H_
