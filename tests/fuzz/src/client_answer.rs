//! A service that answers anything, against a client's calls.
//!
//! ```text
//! bytes ──► calls ──► Client ──► what it believes: only what an answer of the right kind and number of descriptors said
//!       ──► answers, packets, descriptors ──► played service     texts that are safe to print, no descriptor kept
//! ```
//!
//! As long as the service keeps the protocol, each of its answers is believed.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use memferry::{
    CallError, Client, ConnectError, ConnectOptions, Frame, FrameError, GrantToken, Grantee, OpenError,
    Rights, SessionId,
};
use memferry_service::config::ServiceConfig;
use memferry_service::printable::printable;
use memferry_service::protocol::{
    Answer, Command, Envelope, ExportKind, ExternalStatus, Identity, LatencyStatus, Refusal, RefusalKind,
    RefusedStatus, Reply, ServiceId, Status, Violation, Welcome, ZeroedStatus, decode, encode,
    encode_violation,
};
use memferry_shm::frame;
use memferry_transfer::Handle;
use rustix::event::EventfdFlags;
use rustix::fs::{FileType, MemfdFlags, Mode, OFlags};

use crate::honest::{Honest, welcome};
use crate::input::Input;
use crate::played_service::{Answered, Asked, Halves, Played, Record, Script, locked};

/// Input: four bytes for the calls (see `call`), then what the service answers (see `Hostile`).
pub fn client_answer(data: &[u8]) {
    static PLAYED: OnceLock<Mutex<Played>> = OnceLock::new();
    let played = locked(PLAYED.get_or_init(|| Mutex::new(Played::start("client_answer"))));
    let calls: [u8; CALLS] = std::array::from_fn(|index| data.get(index).copied().unwrap_or(0));
    let answers = data.get(CALLS..).unwrap_or_default().to_vec();
    let (sender, queues) = channel();
    let strayed = Arc::new(AtomicBool::new(false));
    let script = Hostile { honest: Honest::new(GIFT, sender), answers, at: 0, strayed: Arc::clone(&strayed) };
    let record = played.begin(Box::new(script));
    let options = ConnectOptions { timeout: Duration::from_secs(60) };
    match Client::connect_with(played.path(), options) {
        Ok(client) => {
            let frames = Vec::new();
            let mut caller = Caller { client, record, strayed, queues, frames, is_lost: false };
            calls.into_iter().for_each(|call| caller.call(call));
        }
        Err(error) => {
            assert!(strayed.load(Ordering::Acquire), "a good greeting is not believed: {error}");
            check_connect(&error);
        }
    }
    played.end();
    assert_eq!(gifts(), 0, "a descriptor of the service is kept");
}

const CALLS: usize = 4;

/// Descriptors of this process that the service gave. They are known by a mark, as other targets may run on other threads.
fn gifts() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let is_gift = |link: &std::fs::DirEntry| {
        let Ok(target) = std::fs::read_link(link.path()) else { return false };
        let about = std::path::Path::new("/proc/self/fdinfo").join(link.file_name());
        let target = target.to_string_lossy();
        let is_marked = || std::fs::read_to_string(about).is_ok_and(|about| about.contains(&marked_count()));
        target.contains(GIFT) || target.contains("eventfd") && is_marked()
    };
    links.filter(is_gift).count()
}

/// In the names of all memory and pipes that the hostile service gives.
const GIFT: &str = "memferry-fuzz-gift";

/// The count of each eventfd that it gives.
const COUNT: u32 = 0x6769_6674;

/// The line of such an eventfd in `/proc/self/fdinfo`. A client that rings it as a doorbell adds to its last digits.
fn marked_count() -> String {
    format!("eventfd-count: {:>14x}", COUNT >> 8)
}

/// The end of a pipe that is read. It has a name, which is gone again.
fn marked_pipe() -> Option<OwnedFd> {
    let path = std::env::temp_dir().join(format!("{GIFT}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).ok()?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::open(&path, flags, Mode::empty());
    let _ = std::fs::remove_file(&path);
    opened.ok()
}

/// A text that no terminal can misunderstand.
fn check_text(text: &str) {
    assert_eq!(printable(text), text, "a text of the service was not cleaned");
}

fn check_connect(error: &ConnectError) {
    if let ConnectError::Handshake { violation, .. } = error {
        check_text(&violation.to_string());
    }
}

/// A client, and what the service has said to it.
struct Caller {
    client: Client,
    record: Record,
    /// The service did not keep the protocol, or hung up.
    strayed: Arc<AtomicBool>,
    queues: Receiver<Halves>,
    frames: Vec<Frame>,
    is_lost: bool,
}

impl Caller {
    /// Whether the service has given such an answer to the command of its serial, with as many descriptors as it announced.
    fn was_said(&self, is_such: impl Fn(&Answer) -> bool) -> bool {
        locked(&self.record).iter().any(|sent| {
            let Ok(Envelope { serial, descriptors, body: Ok(answer) }) = decode::<Reply>(&sent.bytes) else {
                return false;
            };
            sent.serial == Some(serial) && usize::from(descriptors) == sent.descriptors && is_such(&answer)
        })
    }

    /// A call failed though the service has not refused it.
    fn check_failed(&self, error: &dyn std::fmt::Display) {
        assert!(self.strayed.load(Ordering::Acquire), "an honest answer is not believed: {error}");
    }

    fn check<T>(&mut self, result: Result<T, CallError>, is_such: impl Fn(&Self, &T) -> bool) -> Option<T> {
        assert!(!self.is_lost || result.is_err(), "a service was given up, and is believed");
        match &result {
            Ok(_) | Err(CallError::Refused(_)) => {}
            Err(error) => self.check_failed(error),
        }
        match result {
            Ok(value) => {
                assert!(is_such(self, &value), "what the client believes was never said");
                return Some(value);
            }
            Err(CallError::Refused(refusal)) => {
                check_text(&refusal.message);
                let said = locked(&self.record).iter().any(|sent| {
                    let reply = decode::<Reply>(&sent.bytes);
                    reply.is_ok_and(|reply| {
                        let is_asked = sent.serial == Some(reply.serial);
                        reply.body.is_err_and(|said| {
                            is_asked
                                && said.kind == refusal.kind
                                && printable(&said.message) == refusal.message
                        })
                    })
                });
                assert!(said, "a refusal was never said: {refusal}");
            }
            Err(CallError::Ended(violation)) => {
                check_text(&violation.to_string());
                self.is_lost = true;
            }
            // An answer to the command that is of another kind is not believed, and the session goes on.
            Err(CallError::Protocol(what)) => self.is_lost |= !what.contains("does not match the command"),
            Err(CallError::ServiceLost) => self.is_lost = true,
            Err(_) => {}
        }
        None
    }

    fn call(&mut self, number: u8) {
        match number % 8 {
            0 => self.register(),
            1 => {
                let accepted = self.client.accept(GrantToken::from_raw(5));
                let frame = self.check(accepted, |this, frame| {
                    this.was_said(|answer| {
                        matches!(answer, Answer::Accepted { handle, length, rights, grantor }
                            if (*handle, *length, *rights) == (frame.handle(), frame.length(), frame.rights())
                                && Some(*grantor) == frame.grantor())
                    })
                });
                self.frames.extend(frame);
            }
            2 => self.derive_and_grant(),
            3 => self.open(2 << (number >> 3 & 3)),
            4 => {
                let identified = self.client.identify(SessionId(u64::from(number)));
                self.check(identified, |this, identity| {
                    this.was_said(|answer| matches!(answer, Answer::Identity(said) if said == identity))
                });
            }
            5 => {
                let status = self.client.status();
                let status = self.check(status, |this, status| {
                    this.was_said(|answer| matches!(answer, Answer::Status(said) if cleaned(said) == *status))
                });
                if let Some(status) = status {
                    check_text(&status.policy);
                    status.engines.iter().for_each(|engine| check_text(&engine.name));
                }
            }
            6 => {
                let policy = self.client.policy();
                self.check(policy, |this, policy| {
                    this.was_said(|answer| matches!(answer, Answer::Policy(said) if **said == *policy))
                });
                let engines = self.client.engines();
                self.check(engines, |this, engines| {
                    this.was_said(|answer| matches!(answer, Answer::Engines(said) if said == engines))
                });
            }
            _ => {
                let revoked = self.client.revoke(GrantToken::from_raw(u64::from(number)));
                self.check(revoked, |this, ()| this.was_said(|answer| matches!(answer, Answer::Revoked)));
                self.frames.pop();
            }
        }
    }

    fn register(&mut self) {
        let length = 4096;
        let registered = match self.client.frame(length).alloc() {
            Ok(frame) => Ok(frame),
            Err(FrameError::Call(error)) => Err(error),
            Err(error) => return self.check_failed(&error),
        };
        let frame = self.check(registered, |this, frame| {
            assert_eq!(frame.length(), length);
            this.was_said(|answer| matches!(answer, Answer::Handle(said) if *said == frame.handle()))
        });
        self.frames.extend(frame);
    }

    fn derive_and_grant(&mut self) {
        let Some(frame) = self.frames.last().cloned() else { return };
        let part = frame.length().min(100);
        let derived = self.client.derive(frame.slice(..part), Rights::READ);
        let derived = self.check(derived, |this, derived| {
            assert_eq!((derived.length(), derived.rights()), (part, Rights::READ));
            this.was_said(|answer| matches!(answer, Answer::Handle(said) if *said == derived.handle()))
        });
        let granted = self.client.grant(&frame, Rights::READ, Grantee::User(1));
        self.check(granted, |this, grant| {
            let handle = grant.token().handle();
            this.was_said(|answer| matches!(answer, Answer::Handle(said) if *said == handle))
        });
        self.frames.extend(derived);
    }

    fn open(&mut self, capacity: u32) {
        let opened = match self.client.queue(capacity) {
            Ok(queue) => Ok(queue),
            Err(OpenError::Call(error)) => Err(error),
            // Memory that could shrink ends the connection.
            Err(error @ OpenError::Memory(_)) => {
                self.check_failed(&error);
                self.is_lost = true;
                return;
            }
            Err(error @ OpenError::Map(_)) => return self.check_failed(&error),
        };
        let queue = self.check(opened, |this, queue| {
            assert_eq!((queue.capacity(), queue.outstanding()), (capacity, 0));
            this.was_said(|answer| matches!(answer, Answer::Queue { .. }))
        });
        if let Some(mut queue) = queue {
            let _ = queue.notify_by_event();
            let _ = queue.poll();
        }
        let _ = self.queues.try_recv();
    }
}

/// What a client may keep of a status: the texts are cleaned.
fn cleaned(status: &Status) -> Status {
    let mut status = status.clone();
    status.policy = printable(&status.policy);
    status.engines.iter_mut().for_each(|engine| engine.name = printable(&engine.name));
    status
}

/// Answers by the input: for each packet of the client a byte says how, until the input is used up.
struct Hostile {
    honest: Honest,
    answers: Vec<u8>,
    at: usize,
    /// Something was said that an honest service does not say, or nothing.
    strayed: Arc<AtomicBool>,
}

impl Hostile {
    fn stray(&self) {
        self.strayed.store(true, Ordering::Release);
    }

    /// Takes so many bytes of the input; fewer at its end.
    fn take(&mut self, most: usize) -> Vec<u8> {
        let rest = &self.answers[self.at.min(self.answers.len())..];
        let taken = rest[..most.min(rest.len())].to_vec();
        self.at += taken.len();
        taken
    }

    fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    fn numbers<const N: usize>(&mut self) -> [u64; N] {
        Input::new(&self.take(8 * N)).words()
    }

    /// A descriptor of some kind.
    fn gift(&mut self) -> Option<OwnedFd> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        match self.byte() % 6 {
            0 => frame::allocate_sealed_named(GIFT, 4096, false).ok().map(|(memory, _)| memory),
            1 => frame::allocate_sealed_named(GIFT, 65536, true).ok().map(|(memory, _)| memory),
            2 => rustix::fs::memfd_create(GIFT, flags).ok(),
            3 => {
                let memory = rustix::fs::memfd_create(GIFT, flags).ok()?;
                rustix::fs::ftruncate(&memory, 1 << 16).ok()?;
                Some(memory)
            }
            4 => rustix::event::eventfd(COUNT, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).ok(),
            _ => marked_pipe(),
        }
    }

    /// An answer of some kind with any numbers.
    fn any_answer(&mut self) -> Answer {
        let [first, second, third] = self.numbers();
        let handle = Handle::from_bits(first);
        match self.byte() % 12 {
            0 => Answer::Handle(handle),
            1 => {
                let rights = Rights::from_bits_retain(third as u8);
                Answer::Accepted { handle, length: second, rights, grantor: SessionId(third) }
            }
            2 => Answer::Revoked,
            3 => Answer::Queue { queue: first as u32, capacity: second as u32 },
            4 => Answer::Closed,
            5 => Answer::Notified,
            6 => Answer::Policy(Box::new(ServiceConfig::default().policy)),
            7 => Answer::Identity(Identity {
                service: ServiceId(u128::from(first) << 64 | u128::from(second)),
                user: third as u32,
                process: (third >> 32) as u32,
            }),
            8 => Answer::Exported { kind: ExportKind::Memory, length: first },
            9 => Answer::EngineOpened,
            10 => Answer::EngineAttached {
                workers: first as u32,
                capacity: second as u32,
                stall: Duration::from_nanos(third),
            },
            _ => Answer::Status(Box::new(self.status(first))),
        }
    }

    fn status(&mut self, number: u64) -> Status {
        let length = usize::from(self.byte());
        let text = String::from_utf8_lossy(&self.take(length)).into_owned();
        let engine = ExternalStatus {
            name: text.chars().rev().collect(),
            user: number as u32,
            is_connected: false,
            process: None,
            frames: 0,
            memory_bytes: number,
            memory_used: number,
            transfers: number,
            bytes: number,
            redone: number,
        };
        Status {
            process: number as u32,
            uptime_seconds: number,
            policy: text,
            slices: number,
            strayed_bytes: number,
            open_sessions: number,
            sessions: Vec::new(),
            workers: Vec::new(),
            zeroed: ZeroedStatus { buffers: number, bytes: number, failed: number },
            module: None,
            latency: LatencyStatus { buckets: [number; memferry::LATENCY_BUCKETS], nanoseconds: number },
            refused: RefusedStatus { commands: [number; 6], turned_away: number, violations: number },
            engines: vec![engine],
        }
    }

    /// The answer to a command, wrong in some way.
    fn twisted(&mut self, serial: u32, command: &Command, memory: &[OwnedFd]) -> Option<Vec<Answered>> {
        let mut honest = self.honest.reply(serial, command, memory);
        let manner = self.byte() % 10;
        if manner > 2 {
            self.stray();
        }
        let packet = match manner {
            0..=2 => honest,
            3 => {
                let body = Ok(self.any_answer());
                Answered {
                    bytes: encode::<Reply>(&Envelope { serial, descriptors: 0, body }),
                    descriptors: vec![],
                }
            }
            4 => {
                // Bytes of the answer are changed.
                let [at, to] = [self.byte(), self.byte()];
                let at = usize::from(at) % honest.bytes.len().max(1);
                honest.bytes.get_mut(at).into_iter().for_each(|byte| *byte = to);
                honest
            }
            5 => {
                // Other descriptors, announced or not.
                let [count, announced] = [self.byte() % 6, self.byte() % 6];
                let descriptors: Vec<OwnedFd> = (0..count.min(4)).filter_map(|_| self.gift()).collect();
                let body = match decode::<Reply>(&honest.bytes) {
                    Ok(reply) => reply.body,
                    Err(_) => Ok(Answer::Closed),
                };
                let descriptors_announced = if announced == 5 { descriptors.len() as u8 } else { announced };
                let envelope = Envelope { serial, descriptors: descriptors_announced, body };
                Answered { bytes: encode::<Reply>(&envelope), descriptors }
            }
            6 => {
                let length = usize::from(self.byte());
                let message = String::from_utf8_lossy(&self.take(length)).into_owned();
                let kind = RefusalKind::ALL[length % RefusalKind::ALL.len()];
                let body = Err(Refusal { kind, message });
                Answered {
                    bytes: encode::<Reply>(&Envelope { serial, descriptors: 0, body }),
                    descriptors: vec![],
                }
            }
            7 => {
                let length = usize::from(self.byte());
                Answered { bytes: self.take(length), descriptors: vec![] }
            }
            8 => {
                // Out of turn: the answer comes with another serial, and before the right one.
                let other = serial.wrapping_add(u32::from(self.byte())).wrapping_sub(1);
                let body = Ok(self.any_answer());
                let early = Answered {
                    bytes: encode::<Reply>(&Envelope { serial: other, descriptors: 0, body }),
                    descriptors: vec![],
                };
                return Some(vec![early, honest]);
            }
            _ => {
                let length = usize::from(self.byte());
                let text = String::from_utf8_lossy(&self.take(length)).into_owned();
                let violation = match length % 3 {
                    0 => Violation::Unwelcome(text),
                    1 => Violation::Stuck(text),
                    _ => Violation::Engine(text),
                };
                Answered { bytes: encode_violation(&violation), descriptors: vec![] }
            }
        };
        Some(vec![packet])
    }

    fn greeting(&mut self) -> Answered {
        let [features, session] = self.numbers();
        let manner = self.byte() % 6;
        if manner > 2 {
            self.stray();
        }
        match manner {
            0..=2 => welcome(),
            3 => {
                let welcome = Welcome { version: features as u16, features, session: SessionId(session) };
                Answered { bytes: welcome.encode(), descriptors: Vec::new() }
            }
            4 => {
                let length = usize::from(self.byte());
                Answered { bytes: self.take(length), descriptors: self.gift().into_iter().collect() }
            }
            _ => {
                let length = usize::from(self.byte());
                let text = String::from_utf8_lossy(&self.take(length)).into_owned();
                Answered { bytes: encode_violation(&Violation::Stuck(text)), descriptors: Vec::new() }
            }
        }
    }
}

impl Script for Hostile {
    fn answer(&mut self, asked: Asked) -> Option<Vec<Answered>> {
        if self.at >= self.answers.len() || matches!(asked, Asked::Nonsense) {
            self.stray();
            return None;
        }
        match asked {
            Asked::Hello => Some(vec![self.greeting()]),
            Asked::Command { serial, command, memory } => self.twisted(serial, &command, &memory),
            Asked::Nonsense => None,
        }
    }
}
