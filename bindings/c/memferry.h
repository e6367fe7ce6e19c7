/* memferry: user-level DMA. Hand a transfer to an engine, continue to compute, and take its completion later.
 *
 * Written by cbindgen from bindings/c; do not edit. SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Every function returns MF_ERROR_NONE, which is 0, or an error number: below 100 the call failed, from 100 a transfer failed.
 * mf_error_text describes a number, and mf_last_message describes the last failure with its operands. No function ends the program
 * or unwinds into it. Handles are numbers: a freed one is an error. Pointers have to be valid during the call; null and misaligned
 * ones are errors.
 *
 * Threads: functions marked "any thread" may be called concurrently. A queue is used by one thread at a time: a second thread gets
 * MF_ERROR_IN_USE. In a signal handler only mf_error_text may be called. No thread may be cancelled (pthread_cancel) while it is in
 * a function of this library.
 *
 * Waiting: mf_connect, mf_queue_open and _close, mf_eventfd, mf_accept, mf_derive, mf_revoke and the mf_frame_ and mf_grant_
 * functions that make or end something ask the service and wait for its answer for five seconds, or the limit of mf_connect_with;
 * so does taking the last completion that keeps a freed frame. A service that is stopped or overloaded gives MF_ERROR_NO_ANSWER
 * then, or MF_ERROR_REVOCATION_PENDING; the session stays usable.
 *
 * Overview: memferry(7). */

#ifndef MEMFERRY_H
#define MEMFERRY_H

#include <stddef.h>
#include <stdint.h>

/* The compiler warns where the result is ignored. */
#ifdef __GNUC__
#define MF_MUST_USE __attribute__((warn_unused_result))
#else
#define MF_MUST_USE
#endif

/* Packs a version of the interface. */
#define MF_MAKE_VERSION(major, minor) ((uint32_t)(major) << 16 | (uint32_t)(minor))

/* The default terms. */
#define MF_TERMS_INIT { sizeof(mf_terms), 0, 0, 0, 0 }


// The version of this interface, as MF_MAKE_VERSION(major, minor). A library serves programs that were compiled with the same
// major version and the same or an earlier minor version.
#define MF_VERSION 2

// The length of a range that reaches to the end of its frame.
#define MF_TO_END UINT64_MAX

// The limit of a wait that has none. Any other negative limit counts as 0: check without waiting.
#define MF_FOREVER -1

// Bytes for the longest text of mf_remote_token, with its end.
#define MF_REMOTE_TOKEN_BYTES 96

// The result of a call. MF_ERROR_NONE is 0; from 100 a transfer failed, below 100 the call itself.
typedef enum mf_error {
  // The call or the transfer succeeded.
  MF_ERROR_NONE = 0,
  // A required pointer is null.
  MF_ERROR_NULL_POINTER = 1,
  // A pointer is not aligned for its type.
  MF_ERROR_UNALIGNED = 2,
  // The handle was freed or never valid.
  MF_ERROR_BAD_HANDLE = 3,
  // A value is outside its range.
  MF_ERROR_ARGUMENT = 4,
  // Lengths or sizes do not match.
  MF_ERROR_LENGTH = 5,
  // The bytes are not inside the frame.
  MF_ERROR_OUT_OF_RANGE = 6,
  // The memory may not be written.
  MF_ERROR_READ_ONLY = 7,
  // The memory is not mapped in this process.
  MF_ERROR_NOT_MAPPED = 8,
  // Program, library and service have incompatible versions.
  MF_ERROR_VERSION = 9,
  // A string is not UTF-8.
  MF_ERROR_TEXT = 10,
  // No service listens at the path, or this user may not connect.
  MF_ERROR_NO_SERVICE = 20,
  // The service is gone; connect again.
  MF_ERROR_SERVICE_LOST = 21,
  // The service ended this session.
  MF_ERROR_SESSION_ENDED = 22,
  // The service broke the protocol.
  MF_ERROR_PROTOCOL = 23,
  // The service refused: the memory cannot be a frame.
  MF_ERROR_REFUSED_FRAME = 24,
  // The service refused: the capability does not exist or does not allow that.
  MF_ERROR_REFUSED_CAPABILITY = 25,
  // The service refused: a quota is reached.
  MF_ERROR_REFUSED_QUOTA = 26,
  // The service refused: an argument is outside its range.
  MF_ERROR_REFUSED_ARGUMENT = 27,
  // The service refused: it is stopping.
  MF_ERROR_REFUSED_STOPPING = 28,
  // The service refused: its system lacks a resource.
  MF_ERROR_REFUSED_SYSTEM = 29,
  // This process's system lacks a resource.
  MF_ERROR_SYSTEM = 30,
  // Only a client of mf_embed can do that.
  MF_ERROR_NOT_EMBEDDED = 31,
  // The service did not answer within the client's time limit.
  MF_ERROR_NO_ANSWER = 32,
  // A revocation was not complete within the client's time limit: a transfer may still use the memory. Revoke again to wait.
  MF_ERROR_REVOCATION_PENDING = 33,
  // The handle belongs to the process that this one was forked from.
  MF_ERROR_FORKED = 40,
  // Another thread is using the queue.
  MF_ERROR_IN_USE = 41,
  // A frame of the transfer belongs to another client than the queue.
  MF_ERROR_FOREIGN_FRAME = 42,
  // The queue holds as many transfers as it can; take completions first.
  MF_ERROR_QUEUE_FULL = 43,
  // The time limit was reached; the transfer continues.
  MF_ERROR_TIMED_OUT = 44,
  // The ticket is not outstanding on this queue: its completion was taken, or it belongs to another queue.
  MF_ERROR_UNKNOWN_TICKET = 45,
  // There is no completion now.
  MF_ERROR_NOTHING = 46,
  // The library panicked. The call may have been done in part.
  MF_ERROR_PANICKED = 47,
  // The request was malformed.
  MF_ERROR_MALFORMED = 100,
  // The service does not know the frame.
  MF_ERROR_UNKNOWN_HANDLE = 101,
  // The frame was freed.
  MF_ERROR_STALE_HANDLE = 102,
  // The frame was revoked.
  MF_ERROR_REVOKED = 103,
  // The frame lacks the right: a source needs MF_RIGHTS_READ, a destination MF_RIGHTS_WRITE.
  MF_ERROR_MISSING_RIGHT = 104,
  // The transfer reaches outside its frame.
  MF_ERROR_OUT_OF_BOUNDS = 105,
  // The transfer is too long.
  MF_ERROR_TOO_LONG = 106,
  // The fill's length is not a multiple of its pattern's.
  MF_ERROR_FILL_LENGTH = 107,
  // The two lists hold different numbers of bytes.
  MF_ERROR_SEGMENT_TOTALS = 108,
  // This client may not use that priority.
  MF_ERROR_PRIORITY_NOT_GRANTED = 109,
  // A loop that repeats nothing, or is inside another loop.
  MF_ERROR_BAD_LOOP = 110,
  // All engine channels are busy, and the transfer asked not to wait.
  MF_ERROR_CHANNELS_BUSY = 111,
  // This user's quota of waiting requests is used up.
  MF_ERROR_WAITING_QUOTA = 112,
  // Cancelled, or its memory was revoked.
  MF_ERROR_CANCELLED = 113,
  // The transfer's deadline passed before its end.
  MF_ERROR_DEADLINE_EXCEEDED = 114,
  // The memory failed under the engine.
  MF_ERROR_MEMORY_FAULT = 115,
  // The engine channel failed and may still write to the transfer's memory: do not reuse it. mf_frame_free of lent memory tells
  // whether it may be reused.
  MF_ERROR_CHANNEL_FAULTED = 116,
  // No engine of this service performs the operation.
  MF_ERROR_UNSUPPORTED = 117,
  // The engine did not report the end in time.
  MF_ERROR_ENGINE_TIMED_OUT = 118,
  // The device made a request before its previous one was served.
  MF_ERROR_REQUEST_DROPPED = 119,
  // The engine was reset during the transfer.
  MF_ERROR_ENGINE_RESET = 120,
  // The service was stopping and did not start the transfer.
  MF_ERROR_SERVICE_STOPPING = 121,
  // The service was lost; the outcome is unknown.
  MF_ERROR_OUTCOME_UNKNOWN = 122,
  // The deadline conflicts with earlier promises to other transfers; the transfer was not started.
  MF_ERROR_DEADLINE_UNREACHABLE = 123,
  // Two operands of an xor or dual copy overlap in part, or a picture would be turned in its own place.
  MF_ERROR_OVERLAP = 124,
  // The frame comes from a grant for a limited time, which is over.
  MF_ERROR_EXPIRED = 125,
  // The link to the node that has the memory is broken.
  MF_ERROR_PEER_LOST = 126,
  // The node that has the memory refused; mf_last_message says why.
  MF_ERROR_PEER_REFUSED = 127,
} mf_error;

// The operand at fault.
typedef enum mf_side {
  // Neither operand, or both.
  MF_SIDE_NONE = 0,
  // Memory that is read.
  MF_SIDE_SOURCE = 1,
  // Memory that is written.
  MF_SIDE_DESTINATION = 2,
} mf_side;

// The engine that moved the bytes.
typedef enum mf_engine {
  // No engine started it.
  MF_ENGINE_NONE = 0,
  // A CPU of this machine.
  MF_ENGINE_CPU = 1,
  // A model in virtual time.
  MF_ENGINE_SIMULATED = 2,
  // The Linux module: a DMA engine, or the kernel's own copy where no engine accepts the transfer.
  MF_ENGINE_MODULE = 3,
  // An engine process that the administrator connected to the service.
  MF_ENGINE_EXTERNAL = 4,
} mf_engine;

// The allowed uses of a frame; bits.
typedef enum mf_rights {
  // As a source of transfers.
  MF_RIGHTS_READ = 1,
  // As a destination of transfers.
  MF_RIGHTS_WRITE = 2,
  // For grants to others.
  MF_RIGHTS_GRANT = 4,
  // For grants to users of other nodes, so that the link uses the memory in place where its administrator allows that.
  MF_RIGHTS_DIRECT = 8,
} mf_rights;

// Conditions of a transfer; bits of mf_terms.flags.
typedef enum mf_flag {
  // The next transfer of the queue starts when this one has succeeded. If this one fails, the next one fails with its error.
  MF_FLAG_LINKED = 1,
  // It starts when all earlier transfers of the queue have ended.
  MF_FLAG_FENCED = 2,
  // It fails with MF_ERROR_CHANNELS_BUSY when it would have to wait for an engine channel.
  MF_FLAG_REFUSE_WHEN_BUSY = 4,
  // It is written into the ring but not started: mf_publish, the next mf_submit_* without this flag, or a wait starts it.
  MF_FLAG_STAGED = 8,
} mf_flag;

// How a transfer uses the CPU caches.
typedef enum mf_hint {
  // The engine decides between MF_HINT_KEEP and MF_HINT_STREAM.
  MF_HINT_AUTO = 0,
  // The destination will be read soon.
  MF_HINT_KEEP = 1,
  // Neither side will be read soon.
  MF_HINT_STREAM = 2,
} mf_hint;

// The order of transfers that wait for an engine channel.
typedef enum mf_priority {
  // The default: before low, after high.
  MF_PRIORITY_NORMAL = 0,
  // After normal and high transfers.
  MF_PRIORITY_LOW = 1,
  // Before normal and low transfers; the service must allow it to this client.
  MF_PRIORITY_HIGH = 2,
} mf_priority;

// How a copy turns a picture.
typedef enum mf_turn {
  // The picture is not turned.
  MF_TURN_UPRIGHT = 0,
  // Mirrored left to right.
  MF_TURN_FLIP_HORIZONTAL = 1,
  // Mirrored top to bottom.
  MF_TURN_FLIP_VERTICAL = 2,
  // A quarter turn clockwise.
  MF_TURN_ROTATE90 = 3,
  // A turn by 180 degrees.
  MF_TURN_ROTATE180 = 4,
  // A quarter turn counter-clockwise.
  MF_TURN_ROTATE270 = 5,
  // Rows and columns exchanged.
  MF_TURN_TRANSPOSE = 6,
} mf_turn;

// What the descriptor of an engine's memory is.
typedef enum mf_export_kind {
  // A memfd, to be mapped with mmap, shared, from offset 0 on. It cannot shrink.
  MF_EXPORT_KIND_MEMORY = 1,
  // Memory of an NVIDIA GPU, for cuMemImportFromShareableHandle as CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.
  MF_EXPORT_KIND_CUDA = 2,
} mf_export_kind;

// A session with a service. All zeros is never valid.
typedef struct mf_client {
  // Opaque; not an address.
  uint64_t id;
} mf_client;

// A sequence of asynchronous copies between plain pointers. All zeros is never valid.
typedef struct mf_copier {
  // Opaque; not an address.
  uint64_t id;
} mf_copier;

// Memory that the service may move bytes in. All zeros is never valid.
typedef struct mf_frame {
  // Opaque; not an address.
  uint64_t id;
} mf_frame;

// Memory of a frame at an engine, for this process to map.
typedef struct mf_exported {
  // The caller's to close.
  int descriptor;
  // One value of mf_export_kind.
  uint32_t kind;
  // Bytes of the memory, rounded up as the engine or its device does. The frame begins with the first one.
  uint64_t length;
  // With MF_EXPORT_KIND_CUDA the GPU's UUID, as cuDeviceGetUuid_v2 gives it, else zeros.
  uint8_t device[16];
} mf_exported;

// A range of a frame.
typedef struct mf_range {
  // The frame that contains the range.
  struct mf_frame frame;
  // Bytes from its start.
  uint64_t offset;
  // Bytes in the range, or MF_TO_END.
  uint64_t length;
} mf_range;

// Names a grant: the grantor passes it to the grantee, which accepts it. It is of no use to others.
typedef struct mf_grant_token {
  // The number to pass on.
  uint64_t value;
} mf_grant_token;

// An ordered stream of transfers. All zeros is never valid.
typedef struct mf_queue {
  // Opaque; not an address.
  uint64_t id;
} mf_queue;

// Names one submitted transfer of one queue.
typedef struct mf_ticket {
  // Opaque; identifies the transfer within its queue.
  uint64_t tag;
  // Opaque; identifies the queue.
  uint64_t queue;
} mf_ticket;

// The end of one transfer.
typedef struct mf_completion {
  // The ticket of the completed transfer.
  struct mf_ticket ticket;
  // MF_ERROR_NONE, or how the transfer failed.
  enum mf_error error;
  // The operand at fault.
  enum mf_side side;
  // The engine that moved the bytes.
  enum mf_engine engine;
  // Not 0: an earlier transfer that this one is linked to failed, with this error.
  uint32_t inherited;
  // Bytes visited, also by a transfer that failed; in a loop the sum of all rounds. An engine process that failed may have visited
  // more.
  uint64_t bytes_done;
  // The result: the CRC, the offset of the first difference (the length when there is none), the whole rounds of a loop. 0 if
  // the transfer failed.
  uint64_t value;
  // The number in the failure's message: the limit, the available bytes or the handle; else 0.
  uint64_t detail;
} mf_completion;

// The terms of a transfer. Initialise with MF_TERMS_INIT, which sets size. A null pointer to terms means MF_TERMS_INIT.
typedef struct mf_terms {
  // sizeof(mf_terms), which MF_TERMS_INIT sets.
  uint32_t size;
  // Bits of mf_flag, or 0.
  uint32_t flags;
  // One value of mf_hint.
  uint32_t hint;
  // One value of mf_priority.
  uint32_t priority;
  // Nanoseconds from now after which it fails with MF_ERROR_DEADLINE_EXCEEDED; 0 for no limit.
  uint64_t within_ns;
} mf_terms;

// The walk over one operand, in bytes (after Wicki 2014, section 3.3.2).
typedef struct mf_plane {
  // Offset of the first pixel's first byte, from the start of the range.
  uint64_t start;
  // Added after each pixel but the last of a row.
  int64_t x_step;
  // Added after the last pixel of a row.
  int64_t y_step;
} mf_plane;

// A two-dimensional move or fill.
typedef struct mf_shape_2d {
  // Bytes of a pixel: 1, 2 or 4.
  uint32_t pixel_bytes;
  // Pixels of a row.
  uint32_t x_count;
  // Rows of the shape.
  uint32_t y_count;
  // Not 0: source pixels of the colour are left out. Ignored by a fill.
  uint32_t transparent;
  // The transparent colour, or the colour that a fill writes: at most 24 bits.
  uint32_t color;
  // 0; anything else is MF_ERROR_ARGUMENT.
  uint32_t reserved;
  // The walk over the source. Ignored by a fill.
  struct mf_plane source;
  // The walk over the destination.
  struct mf_plane destination;
} mf_shape_2d;

// A rectangle of pixels in a range.
typedef struct mf_image {
  // Offset of the top left pixel from the start of the range, bytes.
  uint64_t origin;
  // Bytes from one row to the next.
  uint64_t pitch_bytes;
  // Pixels of a row.
  uint32_t width;
  // Rows of the image.
  uint32_t height;
  // Bytes of a pixel: 1, 2 or 4.
  uint32_t pixel_bytes;
  // 0; anything else is MF_ERROR_ARGUMENT.
  uint32_t reserved;
} mf_image;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the loaded library, as MF_VERSION is that of the header.
//
// Any thread, any time.
uint32_t mf_version(void);

// Checks that the library serves a program that was compiled with the header of `version`: pass MF_VERSION.
//
// MF_ERROR_VERSION when it does not. Any thread, any time.
MF_MUST_USE enum mf_error mf_check_version(uint32_t version);

// Opens a session with the service that listens on `path`. The service has five seconds to answer, here and in each later call.
//
// MF_ERROR_NO_SERVICE, MF_ERROR_NO_ANSWER, MF_ERROR_VERSION, MF_ERROR_REFUSED_QUOTA, MF_ERROR_TEXT. Any thread. A forked child cannot use its parent's
// handles and opens its own session.
MF_MUST_USE
enum mf_error mf_connect(const char *path,
                         struct mf_client *client);

// As mf_connect, but the service has `limit_ns` nanoseconds to answer, here and in each later call; MF_FOREVER for no limit. Waits
// for transfers have limits of their own.
//
// As mf_connect; MF_ERROR_ARGUMENT for another negative limit. Any thread.
MF_MUST_USE
enum mf_error mf_connect_with(const char *path,
                              int64_t limit_ns,
                              struct mf_client *client);

// Opens a session with the service inside this process, which starts with the first session and needs no daemon. The service
// starts threads and installs a SIGBUS handler for the process: memory that fails under a transfer becomes that transfer's error;
// any other SIGBUS goes to the previous handler, or ends the process. A handler installed later has to call this one for signals
// that it does not handle.
//
// MF_ERROR_SYSTEM. Any thread, and in a forked child.
MF_MUST_USE
enum mf_error mf_embed(struct mf_client *client);

// Frees the handle. The session ends with its last frame and queue.
//
// MF_ERROR_BAD_HANDLE. Any thread.
enum mf_error mf_disconnect(struct mf_client client);

// Gives the session's public name, which others pass to mf_grant_session.
//
// MF_ERROR_BAD_HANDLE. Any thread.
MF_MUST_USE enum mf_error mf_session(struct mf_client client, uint64_t *session);

// Opens a copier: a sequence of asynchronous copies between plain pointers. It has its own thread. Only for clients of
// mf_embed. A forked child has none of its parent's copiers, and pending copies are never done in it: call mf_csync_all before
// the fork.
//
// MF_ERROR_NOT_EMBEDDED, MF_ERROR_SYSTEM. Any thread.
MF_MUST_USE
enum mf_error mf_copier_open(struct mf_client client,
                             struct mf_copier *copier);

// Frees the handle when every copy is in place, including those that other threads request at this moment.
//
// MF_ERROR_BAD_HANDLE, MF_ERROR_FORKED. Any thread.
enum mf_error mf_copier_close(struct mf_copier copier);

// Requests a copy of `length` bytes from `source` to `destination` and returns at once. After mf_csync of any part of the
// destination, that part holds what memcpy would have copied at this call. One copier takes calls in the order in which they
// are made. The ranges may overlap, as with memmove.
//
// Until then, do not read or write the destination, and do not write the source: call mf_csync_to_write or mf_cforget first. A
// source may be written without these calls once mf_csync has returned for every destination that was copied from it. If one of
// them was forgotten or copied over before that, call mf_csync_to_write of the source. Freeing and unmapping count as writing.
//
// A copy from a destination that is still pending reads the bytes where they are now; the buffer between is filled after
// everything else, or never when it is forgotten. Bytes that a later copy overwrites are not moved. The call takes longer when the ranges
// overlap and start less than 4 KiB apart, when it copies from a copy of something that a pending copy overwrites, and when
// thousands of copies are pending. The caller copies up to 8 KiB itself where no pending copy is in the way. Bytes that no engine
// moves are moved by the CPU, so an accepted copy does not fail.
//
// MF_ERROR_NULL_POINTER, MF_ERROR_NOT_MAPPED, MF_ERROR_READ_ONLY, MF_ERROR_ARGUMENT or MF_ERROR_OUT_OF_RANGE (past the last
// address), MF_ERROR_MEMORY_FAULT, MF_ERROR_FORKED; nothing is copied. Any thread.
MF_MUST_USE
enum mf_error mf_amemcpy(struct mf_copier copier,
                         void *destination,
                         const void *source,
                         uintptr_t length);

// Returns when `length` bytes at `memory` are in place and may be read. This thread moves those that are missing.
//
// MF_ERROR_NULL_POINTER, MF_ERROR_ARGUMENT or MF_ERROR_OUT_OF_RANGE (past the last address), MF_ERROR_FORKED. Any thread.
MF_MUST_USE
enum mf_error mf_csync(struct mf_copier copier,
                       const void *memory,
                       uintptr_t length);

// Returns when `length` bytes at `memory` are in place and no copy reads them any more, so that they may be written or freed.
//
// As mf_csync. Any thread.
MF_MUST_USE
enum mf_error mf_csync_to_write(struct mf_copier copier,
                                const void *memory,
                                uintptr_t length);

// Returns when every copy is in place, including those that other threads request meanwhile.
//
// MF_ERROR_BAD_HANDLE, MF_ERROR_FORKED. Any thread.
MF_MUST_USE enum mf_error mf_csync_all(struct mf_copier copier);

// Discards `length` bytes at `memory`: copies to them are dropped, and pending copies from them are done first. When it returns,
// their content is undefined and no copy uses them, so they may be freed, or written again as a whole.
//
// As mf_csync. Any thread.
MF_MUST_USE
enum mf_error mf_cforget(struct mf_copier copier,
                         const void *memory,
                         uintptr_t length);

// Describes an error's number: a constant string, "unknown error" for an undefined number.
//
// Any thread, any time, also in a signal handler.
const char *mf_error_text(int32_t error);

// Describes the last call of this thread that failed, with operands and advice; taking the completion of a failed transfer counts
// as one. Empty when no call failed.
//
// Each thread has its own. The string is valid until the next call of this library on the thread.
const char *mf_last_message(void);

// Allocates at least `length` bytes, in whole pages, zeroed, with all rights, mapped in this process.
//
// MF_ERROR_ARGUMENT for no bytes, MF_ERROR_SYSTEM, MF_ERROR_REFUSED_QUOTA. Any thread.
MF_MUST_USE enum mf_error mf_frame_allocate(struct mf_client client, uint64_t length, struct mf_frame *frame);

// Allocates `length` bytes, zeroed, with all rights, in memory that only the engine process `engine` reaches, such as that of a GPU. The
// frame is not mapped here: transfers by that engine reach it. It is lost, and its grants are revoked, when the engine's process ends.
//
// MF_ERROR_TEXT, MF_ERROR_REFUSED_ARGUMENT if no such engine has memory for this user,
// MF_ERROR_REFUSED_QUOTA, MF_ERROR_REFUSED_SYSTEM if the engine could not allocate it. Any thread.
MF_MUST_USE
enum mf_error mf_frame_allocate_at(struct mf_client client,
                                   const char *engine,
                                   uint64_t length,
                                   struct mf_frame *frame);

// Gives a descriptor of the memory of a frame of mf_frame_allocate_at, for reading and writing it in this process. It cannot be taken
// back: the memory stays until the descriptor and all mappings of it are gone, also after mf_frame_free, or when the engine has ended.
// Grants of the frame are not affected. The caller closes the descriptor, which is not inherited by exec.
//
// MF_ERROR_REFUSED_CAPABILITY for a frame that was accepted or derived, MF_ERROR_REFUSED_ARGUMENT for one in memory of the host and for
// an engine that gives out no descriptors, MF_ERROR_REFUSED_SYSTEM if the engine is gone, busy or late. Any thread.
MF_MUST_USE
enum mf_error mf_frame_export(struct mf_frame frame,
                              struct mf_exported *exported);

// Registers a memfd of this user, of exactly `length` bytes, all allocated, sealable. It is sealed permanently. A memfd that is
// sealed against writing, or was opened read-only, becomes a frame without MF_RIGHTS_WRITE. The caller keeps the descriptor.
//
// MF_ERROR_ARGUMENT for an invalid descriptor, MF_ERROR_REFUSED_FRAME, MF_ERROR_REFUSED_QUOTA, MF_ERROR_SYSTEM. Any thread.
MF_MUST_USE
enum mf_error mf_frame_register(struct mf_client client,
                                int memfd,
                                uint64_t length,
                                struct mf_frame *frame);

// Makes plain memory of this process a frame, without copying it: `length` bytes at `memory`, read-only when `read_only` is not 0.
// The caller keeps the memory mapped until mf_frame_free has returned. Only for clients of mf_embed.
//
// MF_ERROR_ARGUMENT for no bytes or a range past the last address, MF_ERROR_NOT_EMBEDDED, MF_ERROR_NOT_MAPPED,
// MF_ERROR_READ_ONLY, MF_ERROR_REFUSED_QUOTA. Any thread.
MF_MUST_USE
enum mf_error mf_frame_lend(struct mf_client client,
                            void *memory,
                            uintptr_t length,
                            int read_only,
                            struct mf_frame *frame);

// Frees the handle; pointers of mf_frame_map become invalid. Transfers under way keep the memory until their completions were
// taken, and frames of mf_derive keep it until they are freed; its grants end after the last of these. Lent memory is not kept:
// transfers that use it are cancelled, its grants and the frames derived from it end, and when this returns nothing accesses it.
//
// MF_ERROR_BAD_HANDLE; for lent memory MF_ERROR_REFUSED_SYSTEM when a failed engine may still write to it: the handle is freed, but
// do not reuse the memory. Any thread.
enum mf_error mf_frame_free(struct mf_frame frame);

// Gives the frame's length in bytes and its bits of mf_rights; each pointer may be null.
//
// MF_ERROR_BAD_HANDLE. Any thread.
MF_MUST_USE enum mf_error mf_frame_describe(struct mf_frame frame, uint64_t *length, uint32_t *rights);

// Gives the session that granted the frame. Compare it with the session of the expected peer: a token does not identify its grantor.
//
// MF_ERROR_ARGUMENT for a frame that mf_accept did not give. Any thread.
MF_MUST_USE
enum mf_error mf_frame_grantor(struct mf_frame frame,
                               uint64_t *session);

// Gives the address of the frame's bytes in this process, and how many there are; `length` may be null. Valid until the frame is
// freed. Transfers write there: read a destination after its completion was taken.
//
// MF_ERROR_NOT_MAPPED for a frame that was accepted or derived. Any thread.
MF_MUST_USE
enum mf_error mf_frame_map(struct mf_frame frame,
                           void **memory,
                           uint64_t *length);

// Copies bytes out of the frame on this thread, as memmove does: the buffer may lie in any frame, also in this one.
//
// MF_ERROR_OUT_OF_RANGE, MF_ERROR_NOT_MAPPED. Any thread.
MF_MUST_USE
enum mf_error mf_frame_read(struct mf_frame frame,
                            uint64_t offset,
                            void *buffer,
                            uintptr_t length);

// Copies bytes into the frame on this thread, as memmove does: the buffer may lie in any frame, also in this one.
//
// MF_ERROR_OUT_OF_RANGE, MF_ERROR_NOT_MAPPED, MF_ERROR_READ_ONLY. Any thread.
MF_MUST_USE
enum mf_error mf_frame_write(struct mf_frame frame,
                             uint64_t offset,
                             const void *buffer,
                             uintptr_t length);

// Grants bits of mf_rights on a range to every session of a user. The token is not secret: only that user can accept it. The
// grant lasts until mf_revoke or the end of the frame.
//
// MF_ERROR_REFUSED_CAPABILITY, MF_ERROR_REFUSED_ARGUMENT. Any thread.
MF_MUST_USE
enum mf_error mf_grant_user(struct mf_range range,
                            uint32_t rights,
                            uint32_t user,
                            struct mf_grant_token *token);

// Grants rights on a range to one session, as mf_grant_user.
//
// MF_ERROR_REFUSED_CAPABILITY, MF_ERROR_REFUSED_ARGUMENT. Any thread.
MF_MUST_USE
enum mf_error mf_grant_session(struct mf_range range,
                               uint32_t rights,
                               uint64_t session,
                               struct mf_grant_token *token);

// Grants as mf_grant_user, for lasts_ns nanoseconds by the service's CLOCK_MONOTONIC, which stops while the machine is suspended.
// Afterwards the grant cannot be accepted, and transfers under it end with MF_ERROR_EXPIRED. One that runs is not interrupted: mf_revoke
// the grant before the memory is reused. Until then the grant counts against the quota of capabilities, also when its time is over.
//
// MF_ERROR_REFUSED_CAPABILITY, MF_ERROR_REFUSED_ARGUMENT. Any thread.
MF_MUST_USE
enum mf_error mf_grant_user_for(struct mf_range range,
                                uint32_t rights,
                                uint32_t user,
                                uint64_t lasts_ns,
                                struct mf_grant_token *token);

// Grants as mf_grant_session, for lasts_ns nanoseconds, as mf_grant_user_for.
//
// MF_ERROR_REFUSED_CAPABILITY, MF_ERROR_REFUSED_ARGUMENT. Any thread.
MF_MUST_USE
enum mf_error mf_grant_session_for(struct mf_range range,
                                   uint32_t rights,
                                   uint64_t session,
                                   uint64_t lasts_ns,
                                   struct mf_grant_token *token);

// Grants MF_RIGHTS_READ, MF_RIGHTS_WRITE or both on a range to `user` of the machine that the links' configurations call `node`, as
// mf_grant_user. mf_remote_token gives what the user needs to accept it there.
//
// MF_ERROR_REFUSED_CAPABILITY; MF_ERROR_ARGUMENT for what is no node's name, MF_ERROR_TEXT. Any thread.
MF_MUST_USE
enum mf_error mf_grant_remote(struct mf_range range,
                              uint32_t rights,
                              const char *node,
                              uint32_t user,
                              struct mf_grant_token *token);

// Grants as mf_grant_remote, for lasts_ns nanoseconds, as mf_grant_user_for.
//
// MF_ERROR_REFUSED_CAPABILITY; MF_ERROR_ARGUMENT for what is no node's name, MF_ERROR_TEXT. Any thread.
MF_MUST_USE
enum mf_error mf_grant_remote_for(struct mf_range range,
                                  uint32_t rights,
                                  const char *node,
                                  uint32_t user,
                                  uint64_t lasts_ns,
                                  struct mf_grant_token *token);

// Writes the text by which a grant of mf_grant_remote is accepted on the other node, with its end, to `text`, an array of
// MF_REMOTE_TOKEN_BYTES. `range` and `rights` are those of the grant, `node` is the name of this machine in the links' configurations.
// The text is not secret. It is good until the service of this machine ends.
//
// MF_ERROR_ARGUMENT for what is no node's name, MF_ERROR_OUT_OF_RANGE, MF_ERROR_TEXT. Any thread.
MF_MUST_USE
enum mf_error mf_remote_token(struct mf_range range,
                              uint32_t rights,
                              const char *node,
                              struct mf_grant_token token,
                              char *text);

// Accepts a grant that another node made to this user, by the text of its mf_remote_token, through the link of this node
// (memferry-link(1)). The other node is not asked yet: it checks each transfer, which ends with MF_ERROR_PEER_REFUSED if that is not
// granted, and with MF_ERROR_PEER_LOST while the node cannot be reached. The frame is not mapped.
//
// MF_ERROR_ARGUMENT for a text that is no such token, MF_ERROR_TEXT; MF_ERROR_REFUSED_ARGUMENT where this node has no link or the user
// may not use it, MF_ERROR_REFUSED_SYSTEM where the link does not know the other node, MF_ERROR_REFUSED_QUOTA. Any thread.
MF_MUST_USE
enum mf_error mf_accept_remote(struct mf_client client,
                               const char *text,
                               struct mf_frame *frame);

// Accepts a grant. The frame is not mapped in this process: transfers move bytes there, within the rights granted.
//
// MF_ERROR_REFUSED_CAPABILITY. Any thread.
MF_MUST_USE
enum mf_error mf_accept(struct mf_client client,
                        struct mf_grant_token token,
                        struct mf_frame *frame);

// Revokes a grant that this client made. Cancels the transfers that use it, and returns when none uses it any more.
//
// MF_ERROR_REFUSED_CAPABILITY; MF_ERROR_REFUSED_SYSTEM when a failed engine may still write to the memory. Any thread.
MF_MUST_USE
enum mf_error mf_revoke(struct mf_client client,
                        struct mf_grant_token token);

// Makes a frame of a narrower range or with fewer rights, in the same session. It keeps the memory when the other frame is freed,
// unless the memory is lent.
//
// MF_ERROR_REFUSED_CAPABILITY, MF_ERROR_REFUSED_ARGUMENT. Any thread.
MF_MUST_USE
enum mf_error mf_derive(struct mf_range range,
                        uint32_t rights,
                        struct mf_frame *frame);

// Copies `length` bytes between plain memory of this process and returns when it is done; the ranges may overlap, as with memmove.
// Copies of four mebibytes and more bypass the caches where that is faster, and the workers of the embedded service, which the first
// such copy starts, share them. Memory that is not mapped or may not be read or written gives an error and not a signal. That check
// costs a system call for each side, so memcpy is better for a few bytes. Before Linux 6.11 the kernel visits every page, and before
// 5.14 nothing is checked. The check does not notice that a mapped file was truncated.
//
// MF_ERROR_NULL_POINTER, MF_ERROR_ARGUMENT (past the last address), MF_ERROR_NOT_MAPPED, MF_ERROR_READ_ONLY,
// MF_ERROR_MEMORY_FAULT, MF_ERROR_SYSTEM; nothing was written. Any thread, and in a forked child.
MF_MUST_USE
enum mf_error mf_copy(void *destination,
                      const void *source,
                      uintptr_t length);

// Opens a queue for up to `capacity` outstanding transfers: a power of two from 2 to 4096.
//
// MF_ERROR_REFUSED_ARGUMENT, MF_ERROR_REFUSED_QUOTA, MF_ERROR_SYSTEM. Any thread.
MF_MUST_USE enum mf_error mf_queue_open(struct mf_client client, uint32_t capacity, struct mf_queue *queue);

// Closes the queue: outstanding transfers are cancelled, and their completions are lost. A thread that waits in the queue
// continues to wait, and the queue closes when that wait returns.
//
// MF_ERROR_BAD_HANDLE. Any thread.
enum mf_error mf_queue_close(struct mf_queue queue);

// Waits until the transfer has ended, at most `limit_ns` nanoseconds or MF_FOREVER, and takes its completion. `completion` may be
// null. Completions of other transfers stay for later calls.
//
// MF_ERROR_NONE only when the transfer succeeded. From 100: how the transfer failed, with `completion` filled. Below 100 nothing
// was taken: MF_ERROR_TIMED_OUT (the transfer continues), MF_ERROR_UNKNOWN_TICKET (also when its completion was taken before),
// MF_ERROR_IN_USE, MF_ERROR_FORKED. One thread at a time.
MF_MUST_USE
enum mf_error mf_wait(struct mf_queue queue,
                      struct mf_ticket ticket,
                      int64_t limit_ns,
                      struct mf_completion *completion);

// Waits until any transfer has ended, as mf_wait; the completion names it. MF_ERROR_UNKNOWN_TICKET when nothing is outstanding.
//
// As mf_wait. One thread at a time.
MF_MUST_USE
enum mf_error mf_wait_any(struct mf_queue queue,
                          int64_t limit_ns,
                          struct mf_completion *completion);

// Waits until the bytes from `first` up to `end` of the transfer's destination are in place, often long before it ends.
// `ended` may be null. It becomes 1 when the transfer has ended, with its completion still to be taken, and 0 while it continues.
//
// From 100: how the transfer failed, with `ended` 1. Below 100 `ended` is not set: MF_ERROR_TIMED_OUT, MF_ERROR_UNKNOWN_TICKET,
// MF_ERROR_ARGUMENT (`end` before `first`), MF_ERROR_IN_USE, MF_ERROR_FORKED. One thread at a time.
MF_MUST_USE
enum mf_error mf_wait_range(struct mf_queue queue,
                            struct mf_ticket ticket,
                            uint64_t first,
                            uint64_t end,
                            int64_t limit_ns,
                            int *ended);

// Takes the next completion without waiting; MF_ERROR_NOTHING when there is none. The loss of the service shows after a tenth of
// a second and 512 calls that find nothing, at the latest.
//
// MF_ERROR_NONE only when a transfer ended and succeeded. From 100: how a transfer failed, with `completion` filled. Below 100
// nothing was taken: MF_ERROR_NOTHING, MF_ERROR_IN_USE, MF_ERROR_FORKED. One thread at a time.
MF_MUST_USE
enum mf_error mf_poll(struct mf_queue queue,
                      struct mf_completion *completion);

// Requests that a transfer end early. Its completion comes in any case and tells how it ended.
//
// MF_ERROR_UNKNOWN_TICKET, MF_ERROR_IN_USE, MF_ERROR_FORKED. One thread at a time.
enum mf_error mf_cancel(struct mf_queue queue, struct mf_ticket ticket);

// Requests that the loop of mf_submit_repeat end after its present round.
//
// MF_ERROR_UNKNOWN_TICKET, MF_ERROR_IN_USE, MF_ERROR_FORKED. One thread at a time.
enum mf_error mf_stop(struct mf_queue queue, struct mf_ticket ticket);

// Starts the transfers that were submitted with MF_FLAG_STAGED.
//
// MF_ERROR_IN_USE, MF_ERROR_BAD_HANDLE. One thread at a time.
MF_MUST_USE enum mf_error mf_publish(struct mf_queue queue);

// Creates an eventfd that becomes readable when a completion comes while the queue is armed. The caller closes it. A queue has
// one; reading the descriptor resets it. A service that was killed signals nothing: wait with a limit, a second for example, and
// call mf_arm again, which detects that.
//
// MF_ERROR_REFUSED_ARGUMENT when the queue has one already, MF_ERROR_REFUSED_SYSTEM without io_uring. One thread at a time.
MF_MUST_USE
enum mf_error mf_eventfd(struct mf_queue queue,
                         int *descriptor);

// Requests a signal for the next completion. `ready` becomes 1 when there is a completion already, which is not signalled: call
// mf_poll until MF_ERROR_NOTHING, then arm again. Otherwise `ready` becomes 0. The request holds until the next mf_poll or mf_wait
// and may be repeated meanwhile: when the service was lost, `ready` becomes 1 and mf_poll gives the completions of the outstanding
// transfers. After these `ready` stays 1 with nothing to take, so close a queue that is ready twice with nothing to take.
//
// MF_ERROR_IN_USE, MF_ERROR_FORKED. One thread at a time.
MF_MUST_USE
enum mf_error mf_arm(struct mf_queue queue,
                     int *ready);

// Submits a transfer that moves nothing. With MF_FLAG_FENCED it ends when all earlier ones have ended.
//
// For this and every mf_submit_ function: `terms` may be null; `ticket` may be null in a program that takes completions by mf_poll.
// The transfer keeps its frames until its completion was taken. The completion reports ranges outside their frames and missing
// rights.
//
// MF_ERROR_BAD_HANDLE, MF_ERROR_QUEUE_FULL,
// MF_ERROR_FOREIGN_FRAME, MF_ERROR_IN_USE, MF_ERROR_SERVICE_LOST, MF_ERROR_FORKED, MF_ERROR_VERSION (terms of another size),
// MF_ERROR_ARGUMENT (unknown terms), MF_ERROR_OUT_OF_RANGE (MF_TO_END from beyond the end); nothing was submitted. One thread at a
// time in a queue.
MF_MUST_USE
enum mf_error mf_submit_nop(struct mf_queue queue,
                            const struct mf_terms *terms,
                            struct mf_ticket *ticket);

// Submits a copy of the whole source to the start of the destination; they may overlap, as with memmove.
//
// MF_ERROR_LENGTH when the destination is shorter, and as mf_submit_nop. One thread at a time.
MF_MUST_USE
enum mf_error mf_submit_copy(struct mf_queue queue,
                             struct mf_range source,
                             struct mf_range destination,
                             const struct mf_terms *terms,
                             struct mf_ticket *ticket);

// Submits a fill of the destination with a pattern of `pattern_bytes` 1, 2 or 4, little-endian, which must divide its length.
//
// MF_ERROR_ARGUMENT for another width or a pattern too large for it, and as mf_submit_nop. One thread at a time.
MF_MUST_USE
enum mf_error mf_submit_fill(struct mf_queue queue,
                             struct mf_range destination,
                             uint32_t pattern,
                             uint32_t pattern_bytes,
                             const struct mf_terms *terms,
                             struct mf_ticket *ticket);

// Submits a move of pixels (mem_copy_2d of Wicki 2014, listing 4). The walks' starts count from the ranges' offsets, and the walks
// have to stay in the frames; the ranges' lengths are ignored. A picture may be shifted over itself; if other walks have bytes in
// common, the transfer fails with MF_ERROR_OVERLAP.
//
// MF_ERROR_ARGUMENT, MF_ERROR_OUT_OF_RANGE, and as mf_submit_nop. One thread at a time.
MF_MUST_USE
enum mf_error mf_submit_copy_2d(struct mf_queue queue,
                                struct mf_range source,
                                struct mf_range destination,
                                const struct mf_shape_2d *shape,
                                const struct mf_terms *terms,
                                struct mf_ticket *ticket);

// Submits a fill of pixels with one colour (mem_fill_2d of Wicki 2014, listing 4), as mf_submit_copy_2d.
//
// As mf_submit_copy_2d. One thread at a time.
MF_MUST_USE
enum mf_error mf_submit_fill_2d(struct mf_queue queue,
                                struct mf_range destination,
                                const struct mf_shape_2d *shape,
                                const struct mf_terms *terms,
                                struct mf_ticket *ticket);

// Submits a copy of a picture, turned by one of mf_turn. With `transparent` not 0, source pixels of `color` are left out. The
// destination must have the size that the turn gives. The pictures count from the ranges' offsets and have to stay in the frames;
// the ranges' lengths are ignored. A picture that would be turned in its own place fails with MF_ERROR_OVERLAP.
//
// MF_ERROR_ARGUMENT, MF_ERROR_LENGTH, MF_ERROR_OUT_OF_RANGE, and as mf_submit_nop. One thread at a time.
MF_MUST_USE
enum mf_error mf_submit_turn(struct mf_queue queue,
                             struct mf_range source,
                             const struct mf_image *source_image,
                             uint32_t turn,
                             struct mf_range destination,
                             const struct mf_image *destination_image,
                             uint32_t transparent,
                             uint32_t color,
                             const struct mf_terms *terms,
                             struct mf_ticket *ticket);

// Submits a move of the bytes of the source ranges, in order, to the destination ranges, in order. The lists may be cut
// differently and must hold equally many bytes; up to 1024 ranges each.
//
// MF_ERROR_LENGTH, MF_ERROR_ARGUMENT, and as mf_submit_nop. One thread at a time.
MF_MUST_USE
enum mf_error mf_submit_scatter_gather(struct mf_queue queue,
                                       const struct mf_range *sources,
                                       uintptr_t source_count,
                                       const struct mf_range *destinations,
                                       uintptr_t destination_count,
                                       const struct mf_terms *terms,
                                       struct mf_ticket *ticket);

// Submits, byte by byte, the exclusive or of 1 to 64 sources, all as long as the destination. The destination may be one of them;
// where it overlaps one in part, the transfer fails with MF_ERROR_OVERLAP.
//
// MF_ERROR_LENGTH, MF_ERROR_ARGUMENT, and as mf_submit_nop. One thread at a time.
MF_MUST_USE
enum mf_error mf_submit_xor(struct mf_queue queue,
                            const struct mf_range *sources,
                            uintptr_t source_count,
                            struct mf_range destination,
                            const struct mf_terms *terms,
                            struct mf_ticket *ticket);

// Submits a comparison. The completion's value is the offset of the first byte that differs, or the length.
//
// MF_ERROR_LENGTH, and as mf_submit_nop. One thread at a time.
MF_MUST_USE
enum mf_error mf_submit_compare(struct mf_queue queue,
                                struct mf_range one,
                                struct mf_range other,
                                const struct mf_terms *terms,
                                struct mf_ticket *ticket);

// Submits a CRC-32C of the source. `seed` is the CRC of the bytes before it, 0 for none. The CRC is the completion's value.
//
// As mf_submit_nop. One thread at a time.
MF_MUST_USE
enum mf_error mf_submit_crc32c(struct mf_queue queue,
                               struct mf_range source,
                               uint32_t seed,
                               const struct mf_terms *terms,
                               struct mf_ticket *ticket);

// Submits a copy that also computes the CRC-32C of the bytes written.
//
// As mf_submit_copy. One thread at a time.
MF_MUST_USE
enum mf_error mf_submit_copy_crc32c(struct mf_queue queue,
                                    struct mf_range source,
                                    struct mf_range destination,
                                    uint32_t seed,
                                    const struct mf_terms *terms,
                                    struct mf_ticket *ticket);

// Submits a copy of one source to the start of two destinations. Where two of the three overlap in part, the transfer fails with
// MF_ERROR_OVERLAP.
//
// MF_ERROR_LENGTH, and as mf_submit_nop. One thread at a time.
MF_MUST_USE
enum mf_error mf_submit_dual_copy(struct mf_queue queue,
                                  struct mf_range source,
                                  struct mf_range first,
                                  struct mf_range second,
                                  const struct mf_terms *terms,
                                  struct mf_ticket *ticket);

// Begins a loop over the linked transfers submitted next, up to the first that is not linked: `rounds` times, or, when `rounds`
// is 0, until mf_stop or a stop of the service. All end when the loop has ended; the value of the loop's own completion is the
// number of whole rounds.
//
// As mf_submit_nop. One thread at a time.
MF_MUST_USE
enum mf_error mf_submit_repeat(struct mf_queue queue,
                               uint32_t rounds,
                               const struct mf_terms *terms,
                               struct mf_ticket *ticket);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* MEMFERRY_H */

#ifndef MEMFERRY_H_INLINE
#define MEMFERRY_H_INLINE

/* Gives all of a frame. */
static inline mf_range mf_all(mf_frame frame) {
    mf_range range = { frame, 0, MF_TO_END };
    return range;
}

/* Gives some bytes of a frame. */
static inline mf_range mf_part(mf_frame frame, uint64_t offset, uint64_t length) {
    mf_range range = { frame, offset, length };
    return range;
}

#endif /* MEMFERRY_H_INLINE */
