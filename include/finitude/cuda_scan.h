/* Scan a whole model's gradients on a CUDA device in one launch: is anything NaN or Inf, where, and how large is the
 * rest.
 *
 * A C interface to the library libfinitude_cuda, which knows nothing of PyTorch: raw device pointers and a stream go
 * in, results come out through pinned host memory that the device writes. In the steady state (same tensors, nothing
 * bad) a scan is one kernel launch and one event record on the caller's stream: no allocation, no copy, no wait.
 *
 *   finitude_cuda_open -> finitude_cuda_set (cheap where nothing changed) -> finitude_cuda_scan -> ... ->
 * finitude_cuda_poll
 *
 * Functions return a finitude_cuda_status and never throw, abort or print. Each makes the list's device current and
 * puts the caller's back. One thread at a time per list; different lists may be used from different threads. Streams
 * are cudaStream_t (null: the legacy default stream). A list may be used on one stream after another: the order of its
 * calls is kept by events. Sums are in a fixed order and maxima and counts are integers: equal inputs give equal bits.
 */
#ifndef FINITUDE_CUDA_SCAN_H_
#define FINITUDE_CUDA_SCAN_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FINITUDE_CUDA_ABI 3u
/* How many scans back finitude_cuda_poll and finitude_cuda_fetch still know. */
#define FINITUDE_CUDA_RING 128u
#define FINITUDE_CUDA_ROWS 8u
/* Scans that may be captured into graphs, per list. */
#define FINITUDE_CUDA_CAPTURED 16u
/* Tensors that one finitude_cuda_ahead may read: their table travels with the launch. */
#define FINITUDE_CUDA_AHEAD 80u

typedef enum finitude_cuda_status {
  FINITUDE_CUDA_OK = 0,
  FINITUDE_CUDA_NOT_READY = 1, /* poll: the device has not got there yet */
  FINITUDE_CUDA_LOST = 2,      /* poll, fetch: overwritten by later scans, or never made */
  FINITUDE_CUDA_INVALID = 3,   /* a null argument, an unknown dtype, a pointer not aligned to its dtype */
  FINITUDE_CUDA_CAPTURE = 4,   /* the call would allocate, upload or wait while the stream is being captured */
  FINITUDE_CUDA_DEVICE = 5     /* a CUDA call failed: finitude_cuda_why tells which and why */
} finitude_cuda_status;

/* One dense stretch of device memory. */
typedef struct finitude_cuda_tensor {
  const void* data; /* device pointer, aligned to the size of a real element; may be null where numel is 0 */
  uint64_t numel;   /* elements; a complex one counts once and is scanned as two reals */
  uint32_t dtype;   /* finitude::sense::DType (dtype.h); kOther holds nothing to look for and is passed over */
  uint32_t ahead; /* 0: a scan reads it. Else 1 + slot: what finitude_cuda_ahead found last in that slot is its result,
                   * and the fields above are not looked at */
} finitude_cuda_tensor;

/* Of one tensor. Reals: elements, twice that for complex. */
typedef struct finitude_cuda_health {
  uint64_t nan, pos_inf, neg_inf;
  double absmax; /* over finite values; 0 if there are none */
  double sum_sq; /* over finite values, accumulated in float64 */
} finitude_cuda_health;

/* Of one scan. */
typedef struct finitude_cuda_summary {
  uint64_t ticket;
  uint64_t nan, pos_inf, neg_inf;
  double absmax, sum_sq;  /* over the finite values of all tensors */
  double value;           /* finitude_cuda_scan_value: the first real, be it finite or not; else 0 */
  uint32_t bad_tensors;   /* tensors with at least one NaN or Inf */
  uint32_t first_bad;     /* index of the first of them; undefined if there is none */
  uint32_t skipped;       /* 1: `unless_finite` was finite, and the tensors were not read */
  uint32_t runs;          /* how often this scan ran: more than 1 only for one replayed by a graph */
  float found_inf_before; /* what `found_inf` held before this scan wrote it; 0 without one */
  uint32_t noted_bad;     /* 1: a value noted since the last `clear_noted` was NaN or Inf, at the time of this scan */
} finitude_cuda_summary;

typedef struct finitude_cuda_options {
  /* Device float32, or null. Becomes 1.0 where a tensor is bad (the value that PyTorch's fused optimizers compare
   * with). */
  float* found_inf;
  uint32_t keep_larger; /* 0: written 0.0 where nothing is bad. 1: max with what is there, for another's flag */
  uint32_t count_noted; /* 1: a bad noted value (finitude_cuda_scan_value) sets found_inf too */
  uint32_t clear_noted; /* 1: noted values are forgotten after this scan */
  uint32_t reserved;
  /* Null data, or one real on the device, such as a norm over the same tensors: where it is finite the tensors are not
   * read, none is bad, and summary.absmax is its magnitude. */
  finitude_cuda_tensor unless_finite;
} finitude_cuda_options;

typedef struct finitude_cuda_list finitude_cuda_list;

/* The version of this interface that the library was built with: FINITUDE_CUDA_ABI. */
uint32_t finitude_cuda_abi(void);

/* Makes an empty list on `device` (a CUDA ordinal): allocates device and pinned memory, may wait for the device. */
int finitude_cuda_open(int device, finitude_cuda_list** list);
/* Waits for the list's work, then frees it. Null is allowed. */
void finitude_cuda_close(finitude_cuda_list* list);

/* What is to be scanned from now on; indices in results are indices into `tensors`. Compared with what is there: where
 * nothing changed this costs the comparison; where addresses changed, one asynchronous upload on `stream`; only where
 * the list outgrows its memory does it allocate (twice what is needed, and waits), which it refuses (CAPTURE) once a
 * graph holds a scan of it. The tensors are read by scans alone. Memory may be freed and reused as soon as the stream
 * has passed the last scan, which PyTorch's allocator sees to for its own streams. */
int finitude_cuda_set(finitude_cuda_list* list, const finitude_cuda_tensor* tensors, uint32_t count, void* stream);

/* One launch. `options` may be null. `ticket` (not null) names this scan afterwards. While `stream` is captured into a
 * graph the scan becomes part of it, and each replay renews the same result; no event is recorded then, so that replays
 * and other scans of this list are kept apart by the caller. The tensors of the list then are those of every replay. */
int finitude_cuda_scan(finitude_cuda_list* list, void* stream, const finitude_cuda_options* options, uint64_t* ticket);

/* One launch for one small tensor outside the list, such as a loss; its verdict is noted for the scans that follow.
 * bad_tensors is 0 or 1. Read by one block: for up to some 100,000 elements. */
int finitude_cuda_scan_value(finitude_cuda_list* list, void* stream, const finitude_cuda_tensor* tensor,
                             uint64_t* ticket);

/* Writes *found_inf (a device float32; null: nothing is written) from what the last scan of the list in stream order
 * saw and the values noted by now, by the same rules as the options. Then noted values are forgotten. */
int finitude_cuda_found_inf(finitude_cuda_list* list, void* stream, float* found_inf, uint32_t keep_larger,
                            uint32_t count_noted);

/* ---- reading ahead: tensors that are complete long before the rest, read beside what the caller's stream does next
 * -------------- The results take part in a later scan of the list (finitude_cuda_tensor.ahead), which then need not
 * read these tensors. finitude_cuda_ahead and finitude_cuda_join may be called by one thread while another one calls
 * the functions above, on the same list; finitude_cuda_reserve may not. */

/* Makes room for slots 0 .. slots - 1 and for calls of up to `bytes` each. Where there is room already this costs a
 * comparison; else it allocates and waits, and the slots hold nothing. */
int finitude_cuda_reserve(finitude_cuda_list* list, uint32_t slots, uint64_t bytes);
/* One launch on a stream of the list's own, after all that `stream` was given before this call and after earlier calls:
 * reads `count` tensors (1 .. FINITUDE_CUDA_AHEAD, none of them empty; `ahead` is 1 + slot) into their slots. No
 * allocation, no wait, no upload. The tensors' memory must stay as it is until a stream that finitude_cuda_join was
 * called for has passed that point. INVALID where there is no room; CAPTURE while `stream` is captured. */
int finitude_cuda_ahead(finitude_cuda_list* list, const finitude_cuda_tensor* tensors, uint32_t count, void* stream);
/* What `stream` is given from now on comes after all that was read ahead so far. A scan that takes part of it joins by
 * itself. The host waits only if `stream` is being captured, which must not depend on work outside of the capture. */
int finitude_cuda_join(finitude_cuda_list* list, void* stream);
/* Asks without waiting: OK (all that was read ahead has been read), NOT_READY or DEVICE. */
int finitude_cuda_passed(finitude_cuda_list* list);

/* Reads pinned memory: makes no CUDA call and never waits. */
int finitude_cuda_poll(finitude_cuda_list* list, uint64_t ticket, finitude_cuda_summary* summary);
/* Waits until the scan is done (by one event), then as poll. Not for scans captured into a graph. */
int finitude_cuda_wait(finitude_cuda_list* list, uint64_t ticket, finitude_cuda_summary* summary);
/* Asks the device without waiting: OK (the list's last launch outside of graphs is done), NOT_READY or DEVICE (it will
 * never be). */
int finitude_cuda_query(finitude_cuda_list* list);
/* Copies what a finished scan found in its first `count` tensors; waits for the copy. For the rare bad step. LOST after
 * FINITUDE_CUDA_ROWS later scans. */
int finitude_cuda_fetch(finitude_cuda_list* list, uint64_t ticket, finitude_cuda_health* health, uint32_t count);

/* 1: the stream is being captured into a graph; 0: it is not, or nobody knows. */
int finitude_cuda_capturing(int device, void* stream);
/* The last failure of the list (null: of finitude_cuda_open in this thread) in one line, valid until the next call; ""
 * if none. */
const char* finitude_cuda_why(const finitude_cuda_list* list);

#ifdef __cplusplus
}
#endif

#endif /* FINITUDE_CUDA_SCAN_H_ */
