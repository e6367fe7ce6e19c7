/* memferry: user-level DMA. Hand a transfer to an engine, go on computing, and be told when it is done.
 *
 * Written by cbindgen from bindings/c; do not edit. SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Every function gives MF_ERROR_NONE, which is 0, or a number that mf_error_text puts into words; mf_last_message has the
 * operands. No function ends the program or unwinds into it. Handles are numbers: a freed one is an error. Pointers are
 * good for what they are used for during the call; null and misaligned ones are errors.
 *
 * Threads: what says "any thread" may be called by all at once. A channel is used by one thread at a time: whoever comes
 * second gets MF_ERROR_IN_USE. Nothing but mf_error_text may be called in a signal handler. No thread may be cancelled
 * (pthread_cancel) while it is in a function of this library.
 *
 * Waiting: mf_connect, mf_queue_open and _close, mf_eventfd, mf_accept, mf_derive, mf_revoke, the mf_frame_ and mf_grant_
 * functions that make or end something, and who takes the completion that a freed frame was kept for, ask the service and
 * wait for its answer without a limit. A service that is gone ends the wait; one that was stopped, as by SIGSTOP, does not.
 *
 * Overview: memferry(7). */

#ifndef MEMFERRY_H
#define MEMFERRY_H

#include <stddef.h>
#include <stdint.h>
/* Packs a version of the interface. */
#define MF_MAKE_VERSION(major, minor) ((uint32_t)(major) << 16 | (uint32_t)(minor))

/* Terms that ask for nothing special. */
#define MF_TERMS_INIT { sizeof(mf_terms), 0, 0, 0, 0 }


// The version of this interface, as MF_MAKE_VERSION(major, minor). A library serves programs that were compiled with the same
// major and a minor that is not later.
#define MF_VERSION 1

// As the length of a range: to the end of its frame.
#define MF_TO_END UINT64_MAX

// As a limit: wait for as long as it takes. Any other negative limit is 0: a look, without waiting.
#define MF_FOREVER -1

// What went wrong, by number. MF_ERROR_NONE is 0.
typedef enum mf_error {
  // Nothing.
  MF_ERROR_NONE = 0,
  // A pointer that is needed is null.
  MF_ERROR_NULL_POINTER = 1,
  // A pointer is not aligned for what it points to.
  MF_ERROR_UNALIGNED = 2,
  // The handle was freed, or no call gave it.
  MF_ERROR_BAD_HANDLE = 3,
  // A value is outside its range.
  MF_ERROR_ARGUMENT = 4,
  // Source and destination overlap where that has no defined result.
  MF_ERROR_OVERLAP = 5,
  // The lengths or sizes do not fit each other.
  MF_ERROR_LENGTH = 6,
  // The bytes are not inside the frame.
  MF_ERROR_OUT_OF_RANGE = 7,
  // The memory may not be written.
  MF_ERROR_READ_ONLY = 8,
  // The memory is not mapped in this process.
  MF_ERROR_NOT_MAPPED = 9,
  // Program, library and service are of versions that do not fit.
  MF_ERROR_VERSION = 10,
  // A string is not UTF-8.
  MF_ERROR_TEXT = 11,
  // Nobody listens at the path, or this user may not connect.
  MF_ERROR_NO_SERVICE = 20,
  // The service is gone; connect again.
  MF_ERROR_SERVICE_LOST = 21,
  // The service ended this session.
  MF_ERROR_SESSION_ENDED = 22,
  // The service broke the protocol.
  MF_ERROR_PROTOCOL = 23,
  // The service refused: the memory cannot be a frame.
  MF_ERROR_REFUSED_FRAME = 24,
  // The service refused: no such capability, or it does not allow that.
  MF_ERROR_REFUSED_CAPABILITY = 25,
  // The service refused: a quota is reached.
  MF_ERROR_REFUSED_QUOTA = 26,
  // The service refused: an argument is outside its range.
  MF_ERROR_REFUSED_ARGUMENT = 27,
  // The service refused: it is stopping.
  MF_ERROR_REFUSED_STOPPING = 28,
  // The service refused: its machine would not give what is needed.
  MF_ERROR_REFUSED_SYSTEM = 29,
  // The system would not give what is needed.
  MF_ERROR_SYSTEM = 30,
  // Only a client with its service embedded can do that.
  MF_ERROR_NOT_EMBEDDED = 31,
  // This process was forked from the one that the handle belongs to.
  MF_ERROR_FORKED = 40,
  // Another thread is using the queue.
  MF_ERROR_IN_USE = 41,
  // The frames of one transfer have to be of the queue's client.
  MF_ERROR_FOREIGN_FRAME = 42,
  // The queue holds as many transfers as it can; take completions first.
  MF_ERROR_CHANNEL_FULL = 43,
  // The time was up; the transfer goes on.
  MF_ERROR_TIMED_OUT = 44,
  // The ticket is none of this queue's outstanding ones.
  MF_ERROR_UNKNOWN_TICKET = 45,
  // There is no completion now.
  MF_ERROR_NOTHING = 46,
  // A mistake in the library. What was being done may be half done.
  MF_ERROR_PANICKED = 47,
  // The request was malformed.
  MF_ERROR_MALFORMED = 100,
  // The service does not know the frame.
  MF_ERROR_UNKNOWN_HANDLE = 101,
  // The frame was given back.
  MF_ERROR_STALE_HANDLE = 102,
  // The frame was revoked.
  MF_ERROR_REVOKED = 103,
  // The frame lacks the right: a source needs MF_RIGHTS_READ, a destination MF_RIGHTS_WRITE.
  MF_ERROR_MISSING_RIGHT = 104,
  // The transfer leaves its frame.
  MF_ERROR_OUT_OF_BOUNDS = 105,
  // Longer than one transfer may be.
  MF_ERROR_TOO_LONG = 106,
  // The fill's length is no multiple of its pattern.
  MF_ERROR_FILL_LENGTH = 107,
  // The two lists hold different numbers of bytes.
  MF_ERROR_SEGMENT_TOTALS = 108,
  // This client may not use that priority.
  MF_ERROR_PRIORITY_NOT_GRANTED = 109,
  // A loop without anything to repeat, or within another.
  MF_ERROR_BAD_LOOP = 110,
  // All engine channels are busy, and the transfer would not wait.
  MF_ERROR_CHANNELS_BUSY = 111,
  // As many requests wait already as this user may have waiting.
  MF_ERROR_WAITING_QUOTA = 112,
  // Cancelled, or its memory was revoked.
  MF_ERROR_CANCELLED = 113,
  // Its time was up.
  MF_ERROR_DEADLINE_EXCEEDED = 114,
  // The memory failed under the engine.
  MF_ERROR_MEMORY_FAULT = 115,
  // The engine channel failed, and may still write to the memory it had: do not use that for anything else. mf_frame_free of
  // lent memory says whether it may be used again.
  MF_ERROR_CHANNEL_FAULTED = 116,
  // No engine of this service can do it.
  MF_ERROR_UNSUPPORTED = 117,
  // The engine did not report the end in time.
  MF_ERROR_ENGINE_TIMED_OUT = 118,
  // The device asked again before its last request was served.
  MF_ERROR_REQUEST_DROPPED = 119,
  // The engine was reset meanwhile.
  MF_ERROR_ENGINE_RESET = 120,
  // The deadline cannot be met beside those promised to others; it was not started.
  MF_ERROR_DEADLINE_UNREACHABLE = 123,
  // The service was stopping and did not start it.
  MF_ERROR_SERVICE_STOPPING = 121,
  // The service was lost; the outcome is unknown.
  MF_ERROR_OUTCOME_UNKNOWN = 122,
} mf_error;

// Which operand a failure is about.
typedef enum mf_side {
  // None, or both.
  MF_SIDE_NONE = 0,
  // The memory read.
  MF_SIDE_SOURCE = 1,
  // The memory written.
  MF_SIDE_DESTINATION = 2,
} mf_side;

// What moved the bytes.
typedef enum mf_engine {
  // Nothing did.
  MF_ENGINE_NONE = 0,
  // A CPU worker.
  MF_ENGINE_CPU = 1,
  // A model in virtual time.
  MF_ENGINE_SIMULATED = 2,
  // The Linux module: a DMA engine, or the kernel's own copy where none would take it.
  MF_ENGINE_MODULE = 3,
} mf_engine;

// What may be done with a frame; bits.
typedef enum mf_rights {
  // Name it as a source.
  MF_RIGHTS_READ = 1,
  // Name it as a destination.
  MF_RIGHTS_WRITE = 2,
  // Grant it to others.
  MF_RIGHTS_GRANT = 4,
} mf_rights;

// How a transfer is to be served; bits of mf_terms.flags.
typedef enum mf_flag {
  // The next transfer of the queue starts when this one has succeeded, and fails as it did if it fails.
  MF_FLAG_LINKED = 1,
  // It starts when everything submitted to the queue before it has ended.
  MF_FLAG_FENCED = 2,
  // It ends with MF_ERROR_CHANNELS_BUSY when it would have to wait for an engine channel.
  MF_FLAG_REFUSE_WHEN_BUSY = 4,
  // It is written into the ring but not started: mf_publish, the next mf_submit_* without this flag, or a wait does that.
  MF_FLAG_STAGED = 8,
} mf_flag;

// What is to become of the CPU caches.
typedef enum mf_hint {
  // The engine decides.
  MF_HINT_AUTO = 0,
  // The destination will be read soon.
  MF_HINT_KEEP = 1,
  // Neither side will be read soon.
  MF_HINT_STREAM = 2,
} mf_hint;

// Who goes first when transfers wait for an engine channel.
typedef enum mf_priority {
  // What everyone has.
  MF_PRIORITY_NORMAL = 0,
  // After all others.
  MF_PRIORITY_LOW = 1,
  // Before all others; needs the right to it.
  MF_PRIORITY_HIGH = 2,
} mf_priority;

// How a picture is turned on its way.
typedef enum mf_turn {
  // Not at all.
  MF_TURN_UPRIGHT = 0,
  // Left and right exchanged.
  MF_TURN_FLIP_HORIZONTAL = 1,
  // Top and bottom exchanged.
  MF_TURN_FLIP_VERTICAL = 2,
  // A quarter clockwise.
  MF_TURN_ROTATE90 = 3,
  // Half.
  MF_TURN_ROTATE180 = 4,
  // A quarter counter-clockwise.
  MF_TURN_ROTATE270 = 5,
  // Rows become columns.
  MF_TURN_TRANSPOSE = 6,
} mf_turn;

// A session with a service. All zeros is none.
typedef struct mf_client {
  // Not an address. Means nothing to a program.
  uint64_t id;
} mf_client;

// An order of asynchronous copies between plain pointers. All zeros is none.
typedef struct mf_copier {
  // Not an address. Means nothing to a program.
  uint64_t id;
} mf_copier;

// Memory that the service may move bytes in. All zeros is none.
typedef struct mf_frame {
  // Not an address. Means nothing to a program.
  uint64_t id;
} mf_frame;

// A range of a frame.
typedef struct mf_range {
  // The frame.
  struct mf_frame frame;
  // Bytes from its start.
  uint64_t offset;
  // Bytes, or MF_TO_END.
  uint64_t length;
} mf_range;

// An ordered stream of transfers. All zeros is none.
typedef struct mf_queue {
  // Not an address. Means nothing to a program.
  uint64_t id;
} mf_queue;

// Names one submitted transfer of one queue.
typedef struct mf_ticket {
  // Means nothing to a program.
  uint64_t tag;
  // Means nothing to a program.
  uint64_t queue;
} mf_ticket;

// The end of one transfer.
typedef struct mf_completion {
  // What it was submitted under.
  struct mf_ticket ticket;
  // MF_ERROR_NONE, or why it did not do all it asked for.
  enum mf_error error;
  // Which operand the error is about.
  enum mf_side side;
  // What moved the bytes.
  enum mf_engine engine;
  // Not 0: the failure is that of an earlier transfer this one was linked to.
  uint32_t inherited;
  // Bytes visited; those of a transfer in a loop in all rounds.
  uint64_t bytes_done;
  // What was found: the CRC, the offset of the first difference (the length when there is none), the whole rounds of a loop.
  uint64_t value;
  // The failure's number: the limit, the bytes there are, the handle, as mf_last_message says in words; else 0.
  uint64_t detail;
} mf_completion;

// The terms of a transfer. Begin with MF_TERMS_INIT, which sets size. A null pointer to terms means MF_TERMS_INIT.
typedef struct mf_terms {
  // sizeof(mf_terms).
  uint32_t size;
  // Bits of mf_flag.
  uint32_t flags;
  // One of mf_hint.
  uint32_t hint;
  // One of mf_priority.
  uint32_t priority;
  // Nanoseconds from now after which it is given up; 0 is never.
  uint64_t within_ns;
} mf_terms;

// One side's walk over its frame, in bytes (after Wicki 2014, section 3.3.2).
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
  // Rows.
  uint32_t y_count;
  // Not 0: source pixels of the colour are left out. A fill does not look at it.
  uint32_t transparent;
  // The transparent colour, or what a fill writes: at most 24 bits.
  uint32_t color;
  // 0; anything else is MF_ERROR_ARGUMENT.
  uint32_t reserved;
  // How the source is walked. A fill does not look at it.
  struct mf_plane source;
  // How the destination is walked.
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
  // Rows.
  uint32_t height;
  // Bytes of a pixel: 1, 2 or 4.
  uint32_t pixel_bytes;
  // 0; anything else is MF_ERROR_ARGUMENT.
  uint32_t reserved;
} mf_image;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the library that is loaded, as MF_VERSION is of the header.
//
// Any thread, any time.
uint32_t mf_version(void);

// Whether the library serves a program that was compiled with the header of `version`: pass MF_VERSION. MF_ERROR_VERSION when
// it does not.
//
// Any thread, any time.
enum mf_error mf_check_version(uint32_t version);

// Opens a session with the service that listens on `path`, and waits for its welcome without a limit.
//
// MF_ERROR_NO_SERVICE, MF_ERROR_VERSION, MF_ERROR_REFUSED_QUOTA, MF_ERROR_TEXT. Any thread. In a forked child too, where the handles of the
// parent are of no use.
enum mf_error mf_connect(const char *path,
                         struct mf_client *client);

// Opens a session with the service inside this process, which starts with the first session and needs no daemon. With the service
// begin threads of its own, and a handler of SIGBUS is installed for the process: memory that fails under a transfer is that
// transfer's error, any other SIGBUS goes to the handler there was before, or ends the process. Who installs another one later
// hands on what it does not know.
//
// MF_ERROR_SYSTEM. Any thread. In a forked child too.
enum mf_error mf_embed(struct mf_client *client);

// Frees the handle. The session ends with its last frame and queue.
//
// MF_ERROR_BAD_HANDLE. Any thread.
enum mf_error mf_disconnect(struct mf_client client);

// The session's public name, to which others grant (mf_grant_session).
//
// MF_ERROR_BAD_HANDLE. Any thread.
enum mf_error mf_session(struct mf_client client, uint64_t *session);

// Opens a copier: an order of asynchronous copies between plain pointers. It has a thread of its own. Only for clients of
// mf_embed.
//
// MF_ERROR_NOT_EMBEDDED, MF_ERROR_SYSTEM. Any thread.
enum mf_error mf_copier_open(struct mf_client client,
                             struct mf_copier *copier);

// Frees the handle when every copy is in place, also those that other threads ask for at this moment.
//
// MF_ERROR_BAD_HANDLE, MF_ERROR_FORKED. Any thread.
enum mf_error mf_copier_close(struct mf_copier copier);

// Has `length` bytes at `source` copied to `destination`, and returns at once. They are there after mf_csync of them, any part at
// any time, as if memcpy had copied them at this call; calls with one copier count in the order in which they are made. The ranges
// may overlap, as with memmove.
//
// Until then, neither read nor write the destination, and do not write the source: call mf_csync_to_write, or mf_cforget, first. A
// source may be written without a word when every destination that was copied to from it was csynced; where one was forgotten or
// copied over before that, call mf_csync_to_write of the source. Freeing and unmapping count as writing.
//
// What is to be copied from a destination still to come is copied from where the bytes are. The call takes longer when the ranges
// overlap and begin less than 4 KiB apart, when bytes are copied from a copy of something that a pending copy overwrites, and when
// thousands of copies are pending; up to 8 KiB are copied by the caller where nothing pending is in the way. The bytes are moved in
// any case: by the CPU when the engine does not.
//
// MF_ERROR_NULL_POINTER, MF_ERROR_NOT_MAPPED, MF_ERROR_READ_ONLY, MF_ERROR_ARGUMENT or MF_ERROR_OUT_OF_RANGE (beyond all addresses),
// MF_ERROR_MEMORY_FAULT, MF_ERROR_FORKED; nothing is copied. Any thread.
enum mf_error mf_amemcpy(struct mf_copier copier,
                         void *destination,
                         const void *source,
                         uintptr_t length);

// Returns when `length` bytes at `memory` are in place, so that they may be read. What is missing is moved by this thread.
//
// MF_ERROR_NULL_POINTER, MF_ERROR_ARGUMENT or MF_ERROR_OUT_OF_RANGE (beyond all addresses), MF_ERROR_FORKED. Any thread.
enum mf_error mf_csync(struct mf_copier copier,
                       const void *memory,
                       uintptr_t length);

// Returns when `length` bytes at `memory` are in place and no copy reads them any more, so that they may be written or freed.
//
// As mf_csync. Any thread.
enum mf_error mf_csync_to_write(struct mf_copier copier,
                                const void *memory,
                                uintptr_t length);

// Returns when everything is in place, also what other threads ask for meanwhile.
//
// MF_ERROR_BAD_HANDLE, MF_ERROR_FORKED. Any thread.
enum mf_error mf_csync_all(struct mf_copier copier);

// Gives `length` bytes at `memory` up, which hold nothing certain then: what was to be copied there is not, and what is to be
// copied from there is copied first. When it returns nothing touches them, and they may be freed, or written anew as a whole.
//
// As mf_csync. Any thread.
enum mf_error mf_cforget(struct mf_copier copier,
                         const void *memory,
                         uintptr_t length);

// What an error's number means: a constant string, "unknown error" for a number that has no meaning.
//
// Any thread, any time; in a signal handler too.
const char *mf_error_text(int32_t error);

// What the last failed call on this thread said, or the last failed completion it took: the operands, and what to do. Empty when
// there was none.
//
// Each thread has its own. The string is good until the next call of this library on the thread.
const char *mf_last_message(void);

// Allocates at least `length` bytes, in whole pages, zeroed, with all rights, mapped in this process.
//
// MF_ERROR_SYSTEM, MF_ERROR_REFUSED_QUOTA. Any thread.
enum mf_error mf_frame_allocate(struct mf_client client, uint64_t length, struct mf_frame *frame);

// Registers a memfd of this user, of exactly `length` bytes, all allocated, sealable. It is sealed for good. One that is sealed
// against writing, or was opened to be read, is a frame without MF_RIGHTS_WRITE. The descriptor stays the caller's.
//
// MF_ERROR_ARGUMENT when it is no descriptor, MF_ERROR_REFUSED_FRAME, MF_ERROR_REFUSED_QUOTA, MF_ERROR_SYSTEM. Any thread.
enum mf_error mf_frame_register(struct mf_client client,
                                int memfd,
                                uint64_t length,
                                struct mf_frame *frame);

// Makes plain memory of this process a frame, without copying it: `length` bytes at `memory`, to be read only when `read_only` is
// not 0. The memory stays the caller's, who keeps it mapped until mf_frame_free has returned. Only for clients of mf_embed.
//
// MF_ERROR_ARGUMENT for no bytes or a range beyond all addresses, MF_ERROR_NOT_EMBEDDED, MF_ERROR_NOT_MAPPED, MF_ERROR_READ_ONLY,
// MF_ERROR_REFUSED_QUOTA. Any thread.
enum mf_error mf_frame_lend(struct mf_client client,
                            void *memory,
                            uintptr_t length,
                            int read_only,
                            struct mf_frame *frame);

// Frees the handle. Transfers under way keep the memory until their completions were taken, and frames of mf_derive until they are
// freed; when nothing keeps it any more, what was granted of it ends. Lent memory is not kept: transfers that use it are cancelled,
// its grants and the frames derived from it end, and when this returns nothing touches it any more. Pointers of mf_frame_map are
// good no more.
//
// MF_ERROR_BAD_HANDLE; MF_ERROR_REFUSED_SYSTEM of lent memory that an engine which failed may still write to: the handle is gone, but
// leave the memory alone. Any thread.
enum mf_error mf_frame_free(struct mf_frame frame);

// Bytes of the frame, and bits of mf_rights; each may be null.
//
// MF_ERROR_BAD_HANDLE. Any thread.
enum mf_error mf_frame_describe(struct mf_frame frame, uint64_t *length, uint32_t *rights);

// The session that granted the frame: compare it with that of the peer you expect, for a token alone tells nothing of who
// made it.
//
// MF_ERROR_ARGUMENT for a frame that mf_accept did not give. Any thread.
enum mf_error mf_frame_grantor(struct mf_frame frame,
                               uint64_t *session);

// Where the frame's bytes are in this process, and how many; `length` may be null. Good until the frame is freed. The service
// writes there when a transfer asks it to: look at a destination when its completion was taken.
//
// MF_ERROR_NOT_MAPPED for a frame that was accepted or derived. Any thread.
enum mf_error mf_frame_map(struct mf_frame frame,
                           void **memory,
                           uint64_t *length);

// Copies bytes out of the frame, on this thread, as memmove does: the buffer may lie in a frame, also in this one.
//
// MF_ERROR_OUT_OF_RANGE, MF_ERROR_NOT_MAPPED. Any thread.
enum mf_error mf_frame_read(struct mf_frame frame,
                            uint64_t offset,
                            void *buffer,
                            uintptr_t length);

// Copies bytes into the frame, on this thread, as memmove does: the buffer may lie in a frame, also in this one.
//
// MF_ERROR_OUT_OF_RANGE, MF_ERROR_NOT_MAPPED, MF_ERROR_READ_ONLY. Any thread.
enum mf_error mf_frame_write(struct mf_frame frame,
                             uint64_t offset,
                             const void *buffer,
                             uintptr_t length);

// Offers a range to every session of a user, with bits of mf_rights. The token is no secret: it is good for that user only.
//
// MF_ERROR_REFUSED_CAPABILITY, MF_ERROR_REFUSED_ARGUMENT. Any thread.
enum mf_error mf_grant_user(struct mf_range range,
                            uint32_t rights,
                            uint32_t user,
                            uint64_t *token);

// Offers a range to one session, as mf_grant_user.
//
// MF_ERROR_REFUSED_CAPABILITY, MF_ERROR_REFUSED_ARGUMENT. Any thread.
enum mf_error mf_grant_session(struct mf_range range, uint32_t rights, uint64_t session, uint64_t *token);

// Takes up a grant. The frame is not mapped here: the service moves bytes there, within the rights granted.
//
// MF_ERROR_REFUSED_CAPABILITY. Any thread.
enum mf_error mf_accept(struct mf_client client, uint64_t token, struct mf_frame *frame);

// Takes away what was granted under a token. Returns when no transfer uses it any more: those running are cancelled.
//
// MF_ERROR_REFUSED_CAPABILITY. Any thread.
enum mf_error mf_revoke(struct mf_client client,
                        uint64_t token);

// A frame of a narrower range or with fewer rights, of the same session. It keeps the memory though the other frame is freed, but
// for lent memory.
//
// MF_ERROR_REFUSED_CAPABILITY, MF_ERROR_REFUSED_ARGUMENT. Any thread.
enum mf_error mf_derive(struct mf_range range,
                        uint32_t rights,
                        struct mf_frame *frame);

// Copies `length` bytes between plain memory of this process and returns when it is done; the ranges may overlap, as with memmove.
// Long copies go past the caches where that is faster, and are shared by the workers of the embedded service, which starts with the
// first. What is not mapped or may not be read or written is an error and not a signal; the look costs a system call for each
// side (and on Linux before 6.11 a visit of every page), so memcpy is better for a few bytes.
//
// MF_ERROR_NULL_POINTER, MF_ERROR_ARGUMENT (beyond all addresses), MF_ERROR_NOT_MAPPED, MF_ERROR_READ_ONLY, MF_ERROR_MEMORY_FAULT,
// MF_ERROR_SYSTEM; nothing was written. Any thread, and in a forked child.
enum mf_error mf_copy(void *destination,
                      const void *source,
                      uintptr_t length);

// Opens a queue for up to `capacity` transfers outstanding: a power of two from 2 to 4096.
//
// MF_ERROR_REFUSED_ARGUMENT, MF_ERROR_REFUSED_QUOTA, MF_ERROR_SYSTEM. Any thread.
enum mf_error mf_queue_open(struct mf_client client, uint32_t capacity, struct mf_queue *queue);

// Closes the queue: what it has outstanding is cancelled, and its completions are lost. A thread that waits there goes on, and
// the queue closes when that is over.
//
// MF_ERROR_BAD_HANDLE. Any thread.
enum mf_error mf_queue_close(struct mf_queue queue);

// Waits until the transfer has ended, at most `limit_ns` nanoseconds or MF_FOREVER, and takes its completion. `completion` may be
// null. Completions of others stay for later calls.
//
// The transfer's own error, from 100, with `completion` filled; below 100 nothing was taken: MF_ERROR_TIMED_OUT (it goes on),
// MF_ERROR_UNKNOWN_TICKET, MF_ERROR_IN_USE, MF_ERROR_FORKED. One thread at a time.
enum mf_error mf_wait(struct mf_queue queue,
                      struct mf_ticket ticket,
                      int64_t limit_ns,
                      struct mf_completion *completion);

// Waits for any transfer to end, as mf_wait; the completion says which. MF_ERROR_UNKNOWN_TICKET when nothing is outstanding.
//
// As mf_wait. One thread at a time.
enum mf_error mf_wait_any(struct mf_queue queue,
                          int64_t limit_ns,
                          struct mf_completion *completion);

// Waits until the bytes from `first` up to `end` of the transfer's destination are in place: often long before it ends.
// `ended` may be null; it becomes 1 when the transfer has ended, with its completion still to be taken, and 0 when it goes on.
//
// MF_ERROR_TIMED_OUT, MF_ERROR_UNKNOWN_TICKET, MF_ERROR_IN_USE, MF_ERROR_FORKED. One thread at a time.
enum mf_error mf_wait_range(struct mf_queue queue,
                            struct mf_ticket ticket,
                            uint64_t first,
                            uint64_t end,
                            int64_t limit_ns,
                            int *ended);

// Takes the next completion if there is one; MF_ERROR_NOTHING when not. How the transfer ended is in `completion->error` only, so
// that MF_ERROR_NONE means that one was taken. The loss of the service shows after a tenth
// of a second and 512 calls that find nothing, at the latest.
//
// MF_ERROR_NOTHING, MF_ERROR_IN_USE, MF_ERROR_FORKED. One thread at a time.
enum mf_error mf_poll(struct mf_queue queue,
                      struct mf_completion *completion);

// Asks that a transfer end early. Its completion comes in any case and says how it ended.
//
// MF_ERROR_UNKNOWN_TICKET, MF_ERROR_IN_USE, MF_ERROR_FORKED. One thread at a time.
enum mf_error mf_cancel(struct mf_queue queue, struct mf_ticket ticket);

// Asks that the loop of mf_submit_repeat end when its present round is whole.
//
// MF_ERROR_UNKNOWN_TICKET, MF_ERROR_IN_USE, MF_ERROR_FORKED. One thread at a time.
enum mf_error mf_stop(struct mf_queue queue, struct mf_ticket ticket);

// Starts what was submitted with MF_FLAG_STAGED.
//
// MF_ERROR_IN_USE, MF_ERROR_BAD_HANDLE. One thread at a time.
enum mf_error mf_publish(struct mf_queue queue);

// An eventfd that becomes readable when a completion comes while the queue is armed. Closing it is the caller's. A queue has
// one; reading the descriptor resets it. A service that was killed signals nothing: wait with a limit, of a second say, and call
// mf_arm again, which finds that.
//
// MF_ERROR_REFUSED_ARGUMENT when the queue has one already, MF_ERROR_REFUSED_SYSTEM without io_uring. One thread at a time.
enum mf_error mf_eventfd(struct mf_queue queue,
                         int *descriptor);

// Asks to be signalled for the next completion. `ready` becomes 1 when there is one already, which will not be signalled: take it
// with mf_poll until MF_ERROR_NOTHING, then arm again. Else 0. It holds until the next mf_poll or mf_wait, and may be called again
// meanwhile: when the service was lost, `ready` becomes 1 and mf_poll gives the completions of what was outstanding; after these
// `ready` stays 1 and there are none, so a queue that is ready twice with nothing to take is to be closed.
//
// MF_ERROR_IN_USE, MF_ERROR_FORKED. One thread at a time.
enum mf_error mf_arm(struct mf_queue queue,
                     int *ready);

// Submits what moves nothing. With MF_FLAG_FENCED it is the end of all that came before.
//
// For this and every mf_submit_ function: `terms` may be null, `ticket` may be null for who takes completions by mf_poll. What is
// outside its frame or lacks a right is told by the completion. MF_ERROR_BAD_HANDLE, MF_ERROR_QUEUE_FULL,
// MF_ERROR_FOREIGN_FRAME, MF_ERROR_IN_USE, MF_ERROR_SERVICE_LOST, MF_ERROR_FORKED, MF_ERROR_VERSION (terms of another size),
// MF_ERROR_ARGUMENT (terms that there are not), MF_ERROR_OUT_OF_RANGE (MF_TO_END from beyond the end). One thread at a time in a
// queue.
enum mf_error mf_submit_nop(struct mf_queue queue,
                            const struct mf_terms *terms,
                            struct mf_ticket *ticket);

// Submits a copy of the whole source to the start of the destination; they may overlap, as with memmove.
//
// MF_ERROR_LENGTH when the destination is shorter, and as mf_submit_nop. One thread at a time.
enum mf_error mf_submit_copy(struct mf_queue queue,
                             struct mf_range source,
                             struct mf_range destination,
                             const struct mf_terms *terms,
                             struct mf_ticket *ticket);

// Submits a fill of the destination with a pattern of `pattern_bytes` 1, 2 or 4, little-endian, which must divide its length.
//
// MF_ERROR_ARGUMENT for another width or a pattern too large for it, and as mf_submit_nop. One thread at a time.
enum mf_error mf_submit_fill(struct mf_queue queue,
                             struct mf_range destination,
                             uint32_t pattern,
                             uint32_t pattern_bytes,
                             const struct mf_terms *terms,
                             struct mf_ticket *ticket);

// Submits a move of pixels (mem_copy_2d of Wicki 2014, listing 4). The walks' starts count from the ranges' offsets, and the walks
// have to stay in the frames; the ranges' lengths are not looked at.
//
// MF_ERROR_ARGUMENT, MF_ERROR_OUT_OF_RANGE, and as mf_submit_nop. One thread at a time.
enum mf_error mf_submit_copy_2d(struct mf_queue queue,
                                struct mf_range source,
                                struct mf_range destination,
                                const struct mf_shape_2d *shape,
                                const struct mf_terms *terms,
                                struct mf_ticket *ticket);

// Submits a fill of pixels with one colour (mem_fill_2d of Wicki 2014, listing 4), as mf_submit_copy_2d.
//
// As mf_submit_copy_2d. One thread at a time.
enum mf_error mf_submit_fill_2d(struct mf_queue queue,
                                struct mf_range destination,
                                const struct mf_shape_2d *shape,
                                const struct mf_terms *terms,
                                struct mf_ticket *ticket);

// Submits a copy of a picture, turned by one of mf_turn. With `transparent` not 0, source pixels of `color` are left out. The
// destination has to have the size that the turn gives. The pictures count from the ranges' offsets and have to stay in the frames;
// the ranges' lengths are not looked at.
//
// MF_ERROR_ARGUMENT, MF_ERROR_LENGTH, MF_ERROR_OUT_OF_RANGE, and as mf_submit_nop. One thread at a time.
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

// Submits a move of the bytes of the source's ranges, in order, to those of the destination, in order. The lists may be cut
// differently and hold equally many bytes; up to 1024 ranges each.
//
// MF_ERROR_LENGTH, MF_ERROR_ARGUMENT, and as mf_submit_nop. One thread at a time.
enum mf_error mf_submit_scatter_gather(struct mf_queue queue,
                                       const struct mf_range *sources,
                                       uintptr_t source_count,
                                       const struct mf_range *destinations,
                                       uintptr_t destination_count,
                                       const struct mf_terms *terms,
                                       struct mf_ticket *ticket);

// Submits, byte by byte, the exclusive or of 1 to 64 sources, all as long as the destination, which may be one of them.
//
// MF_ERROR_LENGTH, MF_ERROR_ARGUMENT, MF_ERROR_OVERLAP, and as mf_submit_nop. One thread at a time.
enum mf_error mf_submit_xor(struct mf_queue queue,
                            const struct mf_range *sources,
                            uintptr_t source_count,
                            struct mf_range destination,
                            const struct mf_terms *terms,
                            struct mf_ticket *ticket);

// Submits a comparison. The completion's value is the offset of the first byte that differs, or the length.
//
// MF_ERROR_LENGTH, and as mf_submit_nop. One thread at a time.
enum mf_error mf_submit_compare(struct mf_queue queue,
                                struct mf_range one,
                                struct mf_range other,
                                const struct mf_terms *terms,
                                struct mf_ticket *ticket);

// Submits a CRC-32C of the source, going on from `seed`, the CRC of what came before, 0 to begin. It is the completion's value.
//
// As mf_submit_nop. One thread at a time.
enum mf_error mf_submit_crc32c(struct mf_queue queue,
                               struct mf_range source,
                               uint32_t seed,
                               const struct mf_terms *terms,
                               struct mf_ticket *ticket);

// Submits a copy with the CRC-32C of the bytes as they were written.
//
// As mf_submit_copy. One thread at a time.
enum mf_error mf_submit_copy_crc32c(struct mf_queue queue,
                                    struct mf_range source,
                                    struct mf_range destination,
                                    uint32_t seed,
                                    const struct mf_terms *terms,
                                    struct mf_ticket *ticket);

// Submits a copy of one source to the start of two destinations, none of which may overlap another in part.
//
// MF_ERROR_LENGTH, MF_ERROR_OVERLAP, and as mf_submit_nop. One thread at a time.
enum mf_error mf_submit_dual_copy(struct mf_queue queue,
                                  struct mf_range source,
                                  struct mf_range first,
                                  struct mf_range second,
                                  const struct mf_terms *terms,
                                  struct mf_ticket *ticket);

// Begins a loop over the linked transfers submitted next, up to the first that is not linked: `rounds` times, or until mf_stop
// when 0. All end when the loop has ended; the value of this one's completion is the number of whole rounds.
//
// As mf_submit_nop. One thread at a time.
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

/* All of a frame. */
static inline mf_range mf_all(mf_frame frame) {
    mf_range range = { frame, 0, MF_TO_END };
    return range;
}

/* Some bytes of a frame. */
static inline mf_range mf_part(mf_frame frame, uint64_t offset, uint64_t length) {
    mf_range range = { frame, offset, length };
    return range;
}

#endif /* MEMFERRY_H_INLINE */
