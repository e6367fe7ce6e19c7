/* memferry_engine: an engine process of memferry. The service sends it transfers; it moves the bytes.
 *
 * Written by cbindgen from bindings/engine; do not edit. SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * A program calls mf_engine_run with a function that takes requests by mf_engine_next, carries them out, and completes each by
 * mf_engine_complete. Functions return 0 or a number that they describe, or a negative value of mf_engine_error.
 *
 * Overview: memferry_engine(7). */

#ifndef MEMFERRY_ENGINE_H
#define MEMFERRY_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The default options: all operations on memory, from 64 KiB on, 8 requests at a time. */
#define MF_ENGINE_OPTIONS_INIT { sizeof(mf_engine_options), 2047, 0, 0, (uint64_t)1 << 40, 65536, 1, 8, 0 }


// An error of a call.
typedef enum mf_engine_error {
  // A pointer is null or misaligned.
  MF_ENGINE_ERROR_BAD_POINTER = -1,
  // A number or a text is outside its range; mf_engine_run describes it on standard error.
  MF_ENGINE_ERROR_ARGUMENT = -2,
  // mf_engine_options.size is that of another version.
  MF_ENGINE_ERROR_VERSION = -3,
  // The process has no request with this id: it was completed before, or never was.
  MF_ENGINE_ERROR_UNKNOWN_REQUEST = -4,
  // No service answers at the socket, or it does not want this engine; mf_engine_run describes it on standard error.
  MF_ENGINE_ERROR_SERVICE = -5,
  // The process has more than one thread, or a system call failed; mf_engine_run describes it on standard error.
  MF_ENGINE_ERROR_SYSTEM = -6,
  // The library is at fault; please report this.
  MF_ENGINE_ERROR_PANICKED = -7,
  // A function for frames, which the library calls, has called the library.
  MF_ENGINE_ERROR_IN_CALLBACK = -8,
} mf_engine_error;

// An operation; also bits of mf_engine_options.operations. "source", "destination" and so on are fields of the request.
typedef enum mf_engine_operation {
  // Moves nothing and completes.
  MF_ENGINE_OPERATION_NOP = 1,
  // Copies length bytes from source to destination, which may overlap, as with memmove.
  MF_ENGINE_OPERATION_COPY = 2,
  // Repeats pattern over length bytes at destination. pattern_bytes is 1, 2 or 4, and length is a multiple of it.
  MF_ENGINE_OPERATION_FILL = 4,
  // Moves x_count times y_count pixels from source to destination, in order. length is the number of bytes of the pixels.
  MF_ENGINE_OPERATION_COPY2D = 8,
  // Writes color to x_count times y_count pixels at destination.
  MF_ENGINE_OPERATION_FILL2D = 16,
  // Moves the bytes of source_segments to destination_segments in order, each piece as with memmove.
  MF_ENGINE_OPERATION_SCATTER_GATHER = 32,
  // Writes the exclusive or of length bytes of all source_segments to destination, which may be one of them.
  MF_ENGINE_OPERATION_XOR = 64,
  // Finds the first difference of length bytes at source and second. value of the completion is its offset, or length.
  MF_ENGINE_OPERATION_COMPARE = 128,
  // Computes the CRC-32C of length bytes at source, from seed. It is value of the completion.
  MF_ENGINE_OPERATION_CRC = 256,
  // Copies as MF_ENGINE_OPERATION_COPY, and computes the CRC-32C of the bytes as written.
  MF_ENGINE_OPERATION_COPY_CRC = 512,
  // Copies length bytes from source to destination and to second.
  MF_ENGINE_OPERATION_DUAL_COPY = 1024,
} mf_engine_operation;

// How a request ended.
typedef enum mf_engine_status {
  // It was carried out as a whole; a comparison may have ended at the first difference.
  MF_ENGINE_STATUS_DONE = 0,
  // It was ended early because the service asked for it.
  MF_ENGINE_STATUS_CANCELLED = 1,
  // Memory failed while the engine used it.
  MF_ENGINE_STATUS_MEMORY_FAULT = 2,
  // The engine does not perform it; the CPU does.
  MF_ENGINE_STATUS_UNSUPPORTED = 3,
  // The device did not complete it in time and was stopped.
  MF_ENGINE_STATUS_TIMED_OUT = 4,
  // The device was reset and no longer touches the memory.
  MF_ENGINE_STATUS_RESET = 5,
} mf_engine_status;

// How a request should treat the CPU caches. An engine may ignore it.
typedef enum mf_engine_hint {
  // The engine decides between the others.
  MF_ENGINE_HINT_AUTO = 0,
  // The destination will be read soon.
  MF_ENGINE_HINT_KEEP = 1,
  // Neither side will be read soon.
  MF_ENGINE_HINT_STREAM = 2,
} mf_engine_hint;

// What a descriptor of an engine's memory is.
typedef enum mf_engine_export_kind {
  // A memfd, to be mapped from its first byte on. It must have the seal F_SEAL_SHRINK.
  MF_ENGINE_EXPORT_KIND_MEMORY = 1,
  // Memory of an NVIDIA GPU, from cuMemExportToShareableHandle.
  MF_ENGINE_EXPORT_KIND_CUDA = 2,
} mf_engine_export_kind;

// The engine in its own process, as serve gets it.
typedef struct mf_engine_process mf_engine_process;

// What an engine connects as. Initialise with MF_ENGINE_OPTIONS_INIT, which sets all but socket and name.
typedef struct mf_engine_options {
  // sizeof(mf_engine_options), which MF_ENGINE_OPTIONS_INIT sets.
  uint32_t size;
  // The operations that it performs, bits of mf_engine_operation.
  uint32_t operations;
  // The path of the service's socket.
  const char *socket;
  // Its name in the service's configuration: up to 32 lower-case letters, digits and hyphens.
  const char *name;
  // Longest transfer that it takes, bytes.
  uint64_t longest_bytes;
  // Shortest transfer for which handing it over pays, bytes. Shorter ones stay with the CPU.
  uint64_t shortest_bytes;
  // Every address and length is a multiple of this, a power of two.
  uint32_t alignment_bytes;
  // Requests that it takes at a time.
  uint32_t channels;
  // Bytes of memory of its own in which clients can have frames, by the function `allocate` of mf_engine_watch_frames. 0 for none.
  uint64_t memory_bytes;
} mf_engine_options;

// The loop of an engine. It runs in a process of its own, again in a new one each time that has ended. Returns 0, or anything else to
// have the end reported as a failure; in both cases the process ends and another one begins.
typedef int (*mf_engine_serve)(struct mf_engine_process *engine, void *context);

// A piece of a list.
typedef struct mf_engine_segment {
  // Where its first byte is.
  void *address;
  // Bytes, also 0. The sources of an xor all have the request's length.
  uint64_t length;
} mf_engine_segment;

// A request to carry out. Every byte that it names lies in memory of this process, and what it writes is writable. Fields that the
// operation does not use are 0. The pointers are valid until the request is completed. Memory that is read must not be written.
typedef struct mf_engine_request {
  // Names it until it is completed.
  uint64_t id;
  // One value of mf_engine_operation.
  uint32_t operation;
  // One value of mf_engine_hint.
  uint32_t hint;
  // Bytes of each operand; of all segments of one list; of all pixels.
  uint64_t length;
  // Memory to read. With 2-D operations: the first pixel.
  void *source;
  // Memory to write. With 2-D operations: the first pixel.
  void *destination;
  // The second operand of MF_ENGINE_OPERATION_COMPARE or the second destination of MF_ENGINE_OPERATION_DUAL_COPY.
  void *second;
  // The list to read, of MF_ENGINE_OPERATION_SCATTER_GATHER and MF_ENGINE_OPERATION_XOR.
  const struct mf_engine_segment *source_segments;
  // The list to write, of MF_ENGINE_OPERATION_SCATTER_GATHER.
  const struct mf_engine_segment *destination_segments;
  // Number of segments at source_segments.
  uint32_t source_count;
  // Number of segments at destination_segments.
  uint32_t destination_count;
  // The pattern of a fill, repeated to four bytes.
  uint8_t pattern[4];
  // Bytes after which the pattern repeats.
  uint32_t pattern_bytes;
  // The CRC of the preceding bytes.
  uint32_t seed;
  // Bytes of a pixel: 1, 2 or 4, little-endian.
  uint32_t pixel_bytes;
  // Pixels of a row.
  uint32_t x_count;
  // Rows of the shape.
  uint32_t y_count;
  // Not 0: source pixels whose low 24 bits are color are left out.
  uint32_t transparent;
  // The transparent colour, or that of a fill. Smaller pixels use its low bits.
  uint32_t color;
  // Bytes added to the source after each pixel but the last of a row; may be negative.
  int64_t source_x_step;
  // Bytes added to the source after the last pixel of a row.
  int64_t source_y_step;
  // As source_x_step, for the destination.
  int64_t destination_x_step;
  // As source_y_step, for the destination.
  int64_t destination_y_step;
} mf_engine_request;

// Is called when a frame was mapped, or before it is unmapped, on threads of the library. `mapped` has a thread of its own and may pin the
// memory for as long as that takes; the library makes the pages present before. Meanwhile other functions are called for other frames, so
// what they share with `mapped` needs a lock. The other functions should return within milliseconds, because frames of all users wait for
// them. No function may touch the bytes, or call the library: each call returns MF_ENGINE_ERROR_IN_CALLBACK. Threads change from call to
// call: set what belongs to a thread, as a device's context, in each.
typedef void (*mf_engine_frame_event)(void *context,
                                      uint64_t frame,
                                      void *base,
                                      uint64_t length,
                                      bool is_writable);

// Is called when a client wants a frame of `length` bytes in memory that only the engine reaches. Allocates it, zeroed, and returns the
// address by which requests name it, which need not be one of this process. Returns null if there is not so much memory: the client gets
// an error then. The memory is the client's until `unmapping` was called for it. The rules of mf_engine_frame_event apply.
typedef void *(*mf_engine_allocate)(void *context, uint64_t frame, uint64_t length);

// Memory of a frame, for the process of its owner.
typedef struct mf_engine_exported {
  // The descriptor, which the library closes.
  int descriptor;
  // One value of mf_engine_export_kind.
  uint32_t kind;
  // Bytes of the memory, at least those of the frame, which begins with the first one.
  uint64_t length;
  // The UUID of the GPU, with MF_ENGINE_EXPORT_KIND_CUDA.
  uint8_t device[16];
} mf_engine_exported;

// Is called when the owner of a frame in the engine's own memory wants to reach it from its own process. Stores a descriptor of the memory at
// `exported`, which is all zeros but for a descriptor of -1, and returns 0; or returns anything else if there is none this time. The owner
// keeps the memory for as long as it likes, also after `unmapping`: memory that was exported must not be given to another frame. The
// rules of mf_engine_frame_event apply.
typedef int (*mf_engine_export)(void *context, uint64_t frame, struct mf_engine_exported *exported);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Runs an engine until SIGTERM or SIGINT: then it returns 0. The calling process becomes the keeper, which maps frames and forks the
// process in which `serve` runs with `context`. It must have one thread. What goes wrong is written to standard error; when the
// service is lost, the keeper connects again.
//
// MF_ENGINE_ERROR_ARGUMENT, MF_ENGINE_ERROR_VERSION, MF_ENGINE_ERROR_SERVICE, MF_ENGINE_ERROR_SYSTEM.
int mf_engine_run(const struct mf_engine_options *options,
                  mf_engine_serve serve,
                  void *context);

// Gets the next request: returns 1 and stores it at `request`, or 0 if none came within `timeout_ns` nanoseconds. A negative timeout is
// no limit. It returns 0 before that if the service asked for the early end of a request, see mf_engine_take_cancels.
//
// One thread at a time.
int mf_engine_next(struct mf_engine_process *engine,
                   struct mf_engine_request *request,
                   int64_t timeout_ns);

// Completes a request: `status` is one value of mf_engine_status. The engine must not touch its memory any more: if its
// device cannot be stopped, it ends the process instead. `bytes_done` are the bytes that were moved: all of them for MF_ENGINE_STATUS_DONE, except with a
// comparison. `value` is the operation's result, else 0. The service ends the connection with an engine that claims what
// cannot be. Returns 0.
//
// MF_ENGINE_ERROR_UNKNOWN_REQUEST, MF_ENGINE_ERROR_ARGUMENT for another status. One thread at a time.
int mf_engine_complete(struct mf_engine_process *engine,
                       uint64_t id,
                       uint32_t status,
                       uint64_t bytes_done,
                       uint64_t value);

// Reports that the first `bytes` of a request's destination are final, or the last ones if `downward`; with a comparison or a CRC, that
// they were read. This keeps a long request from being taken for stalled: the service ends the connection with an engine that neither
// completes nor reports anything for as long as its configuration says (stall-ms). Each request must also move at 32 MiB/s at least,
// counted with those submitted before it, and has four times stall-ms on top. 0 bytes say that its memory is being prepared: for four
// times stall-ms that is as good as progress. Returns 0.
//
// MF_ENGINE_ERROR_UNKNOWN_REQUEST. One thread at a time.
int mf_engine_progress(struct mf_engine_process *engine,
                       uint64_t id,
                       uint64_t bytes,
                       bool downward);

// Returns 1 if the service asked for the early end of a request, else 0. The request is completed all the same, early or not.
//
// MF_ENGINE_ERROR_UNKNOWN_REQUEST. One thread at a time.
int mf_engine_is_cancelled(struct mf_engine_process *engine,
                           uint64_t id);

// Returns 1 if the service asked for the early end of any request since the last call, else 0. If so, look at all that run.
//
// One thread at a time.
int mf_engine_take_cancels(struct mf_engine_process *engine);

// Has functions called for frames that come and go, for instance to pin them for a device: `mapped` also for those that are here
// already. Either may be null. Requests that name a frame come only after its `mapped` has returned. An engine with memory of its own gives
// `allocate`, another one null; `unmapping` is called when such a frame is to be freed.
// If clients may map that memory in their own processes, it also gives `exporting`, else null.
// The functions replace those of an earlier call, which are not called any more then. `context` must stay valid until that or until `serve`
// has returned, so it is no variable of `serve`. Returns 0.
//
// One thread at a time.
int mf_engine_watch_frames(struct mf_engine_process *engine,
                           mf_engine_frame_event mapped,
                           mf_engine_frame_event unmapping,
                           mf_engine_allocate allocate,
                           mf_engine_export exporting,
                           void *context);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* MEMFERRY_ENGINE_H */
