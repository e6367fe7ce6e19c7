//! `docs/protocol.md` says what the code does: the numbers in its tables and examples, compared with the public functions.
//!
//! ```text
//! heading of a table ─► its rows = what decoding accepts, what an end of a queue pair changes, constants
//! ```
//!
//! Clients in other languages are written from that page alone. The golden tests of the crates pin the numbers themselves.

use std::fmt::Debug;
use std::sync::atomic::Ordering;

use memferry_path::{Grantee, PolicyKind};
use memferry_service::protocol::{
    Answer, Command, Envelope, FEATURE_ASYMMETRIC_FENCES, Hello, Refusal, RefusalKind, Reply, VERSIONS,
    Violation, Welcome, decode, encode, encode_violation,
};
use memferry_shm::conduit;
use memferry_shm::parking::Fences;
use memferry_shm::queue_pair::{ClientEnd, Layout, MAXIMUM_CAPACITY, ParkedWord, ServiceEnd};
use memferry_shm::storage::{HeapWords, RingStorage};
use memferry_transfer::{
    CacheHint, Completion, EngineKind, Failure, Handle, MAX_SEGMENTS, MAX_SOURCES, Operation, Operations,
    Outcome, PriorityClass, Request, Rights, SessionId, Side, Span, Task, Terms, WhenBusy, wire,
};
use serde::de::DeserializeOwned;

fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol.md");
    std::fs::read_to_string(path).expect("docs/protocol.md")
}

/// The rows of the table whose first line begins with `head`, without that line and the next. Backticks are removed.
fn rows(page: &str, head: &str) -> Vec<Vec<String>> {
    let mut lines = page.lines().skip_while(|line| !line.starts_with(head));
    assert!(lines.next().is_some(), "the page has no table that begins with {head}");
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect()
    };
    lines.skip(1).take_while(|line| line.starts_with('|')).map(cells).collect()
}

/// The numbers and names in the first two columns.
fn named(page: &str, head: &str) -> Vec<(u64, String)> {
    let named = |row: Vec<String>| (row[0].parse().expect("a number"), row[1].clone());
    rows(page, head).into_iter().map(named).collect()
}

/// The name of a variant.
fn name(value: &impl Debug) -> String {
    let text = format!("{value:?}");
    text.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default().to_owned()
}

/// Every variant of an enum in messages, found by decoding its number before enough zeros.
fn variants<T: DeserializeOwned + Debug>() -> Vec<(u64, String)> {
    let variant = |number: u8| {
        (0..64).find_map(|zeros| {
            let mut bytes = vec![number];
            bytes.resize(1 + zeros, 0);
            decode::<T>(&bytes).ok()
        })
    };
    (0..=100).map_while(|number| Some((u64::from(number), name(&variant(number)?)))).collect()
}

#[test]
fn numbers_in_messages() {
    let page = page();
    assert_eq!(named(&page, "| number | command |"), variants::<Command>());
    assert_eq!(named(&page, "| number | answer |"), variants::<Answer>());
    assert_eq!(named(&page, "| number | kind |"), variants::<RefusalKind>());
    assert_eq!(named(&page, "| number | violation |"), variants::<Violation>());
    let classes = variants::<PriorityClass>();
    let classes: Vec<_> =
        classes.iter().map(|(number, name)| format!("{number} {}", name.to_lowercase())).collect();
    let types = rows(&page, "| name | type | meaning |");
    let meaning = |of: &str| types.iter().find(|row| row[0] == of).expect("a named type")[2].clone();
    assert!(meaning("class").starts_with(&classes.join(", ")), "{}", meaning("class"));
    let kinds = PolicyKind::ALL.map(|kind| format!("{} {}", encode(&kind)[0], kind.name()));
    assert_eq!(meaning("policy"), kinds.join(", "));
    for (right, text) in [
        (Rights::READ, "READ"),
        (Rights::WRITE, "WRITE"),
        (Rights::GRANT, "GRANT"),
        (Rights::DIRECT, "DIRECT"),
    ] {
        assert!(meaning("rights").contains(&format!("{} {text}", right.bits())));
    }
    assert_eq!(
        (encode(&Grantee::Session(SessionId(9))), encode(&Grantee::User(9))),
        (vec![0, 9], vec![1, 9])
    );
    assert!(meaning("grantee").starts_with("0 a session: session. 1 a user: u32"));
    assert_eq!((VERSIONS, FEATURE_ASYMMETRIC_FENCES), ((5, 5), 1));
    assert!(page.starts_with("# The protocol between client and service, version 5\n"));
}

#[test]
fn limits() {
    let page = page();
    let limits: Vec<(String, u64)> = rows(&page, "| name | value |")
        .into_iter()
        .map(|row| (row[0].clone(), row[1].parse().expect("a number")))
        .collect();
    let smallest = (0..).find(|capacity| Layout::new(*capacity).is_ok()).expect("a capacity");
    let expected = [
        ("bytes of a packet", conduit::MAXIMUM_BYTES as u64),
        ("descriptors of a packet", conduit::MAXIMUM_DESCRIPTORS as u64),
        ("capacity of a queue, minimum", u64::from(smallest)),
        ("capacity of a queue, maximum", u64::from(MAXIMUM_CAPACITY)),
        ("segments of one list", MAX_SEGMENTS as u64),
        ("sources of an xor", MAX_SOURCES as u64),
        ("bytes of a request", memferry_cpu::LONGEST_BYTES),
    ];
    assert_eq!(limits, expected.map(|(name, value)| (name.to_owned(), value)));
}

/// The operation of an opcode as decoding finds it, and whether it has a short form; `None` if there is none.
fn operation(opcode: u64) -> Option<(String, String)> {
    let decode =
        |slot: &wire::SubmissionSlot| wire::decode_request(slot, |_, count| Some(vec![0; count])).ok();
    let long = |width| {
        let mut slot = [0; wire::SUBMISSION_WORDS];
        slot[0] = opcode << 16 | wire::LONG;
        slot[1] = width;
        // One source of an xor.
        slot[4] = u64::from(opcode == 7);
        decode(&slot)
    };
    let name = match long(0).or_else(|| long(1))?.task {
        Task::Transfer(operation) => operation.name().to_owned(),
        Task::Repeat { .. } => "repeat".to_owned(),
    };
    let mut short = [0; wire::SUBMISSION_WORDS];
    // The width of a fill is 1.
    (short[0], short[2]) = (opcode << 16, 1);
    let form = if decode(&short).is_some() { "short" } else { "long" };
    Some((name, form.to_owned()))
}

#[test]
fn opcodes() {
    let found: Vec<_> =
        (0..256).filter_map(|opcode| operation(opcode).map(|(name, form)| (opcode, name, form))).collect();
    let listed: Vec<(u64, String, String)> = rows(&page(), "| number | operation |")
        .into_iter()
        .map(|row| (row[0].parse().expect("a number"), row[1].clone(), row[2].clone()))
        .collect();
    assert_eq!(listed, found);
    // The answer `Engines` has one bit for each opcode but the loop's.
    let bits: Vec<_> = Operations::all().iter().map(|kind| kind.bits()).collect();
    assert_eq!(bits, (0..12).map(|bit| 1 << bit).collect::<Vec<u32>>());
    assert_eq!((Operations::DUAL_COPY.bits(), Operations::SYNCHRONIZED.bits()), (1 << 10, 1 << 11));
}

/// The place of the lowest bit of a header that differs between two requests.
fn differing_bit(one: &Request, other: &Request) -> u32 {
    let [one, other] =
        [one, other].map(|request| wire::encode_long(0, request, &mut Vec::new()).expect("a request")[0]);
    (one ^ other).trailing_zeros()
}

#[test]
fn bits_of_headers() {
    let page = page();
    let of_terms = |change: fn(&mut Terms)| {
        let plain = Request::new(Operation::Nop);
        let mut changed = plain.clone();
        change(&mut changed.terms);
        differing_bit(&plain, &changed)
    };
    let place = Span::new(Handle::new(1, 1), 0);
    let places = [
        ("opcode", differing_bit(&Request::new(Operation::Nop), &Request::copy(place, place, 0))),
        ("refuse", of_terms(|terms| terms.when_busy = WhenBusy::Refuse)),
        ("linked", of_terms(|terms| terms.linked = true)),
        ("fenced", of_terms(|terms| terms.fenced = true)),
        ("cache", of_terms(|terms| terms.hint = CacheHint::Keep)),
        ("class", of_terms(|terms| terms.class = PriorityClass::Low)),
        ("long", wire::LONG.trailing_zeros()),
        ("tag", wire::with_tag(0, 1).trailing_zeros()),
    ];
    let listed = rows(&page, "| header bits |");
    for (name, place) in places {
        let row = listed.iter().find(|row| row[1].starts_with(name)).expect("a row for each part");
        let lowest = row[0].rsplit(':').next().expect("bits");
        assert_eq!(lowest.parse(), Ok(place), "{name}");
    }
    // The header of a completion, in the page's words.
    let header = |inherited, side| {
        let failure = Failure::OutOfBounds { side, available: 0 };
        let completion = Completion { tag: 0, inherited, outcome: Outcome::refused(failure) };
        wire::encode_completion(&completion)[0]
    };
    let plain = header(false, Side::Source);
    let side = (header(false, Side::Destination) ^ plain).trailing_zeros();
    let inherited = (header(true, Side::Source) ^ plain).trailing_zeros();
    let text =
        format!("side ({side}), inherited ({inherited}), {} is 0, long (31), tag (63:32)", inherited + 1);
    assert_eq!(plain, 6 << 16 | wire::LONG);
    assert!(page.contains(&format!("sequence (15:0), status (23:16), engine (27:24), {text} |")));
}

/// The failure of a status, decoded with a detail that every status accepts.
fn failure(status: u64) -> Option<Failure> {
    let completion = wire::decode_completion(&[wire::LONG | status << 16, 0, 1], 0).ok()?;
    completion.outcome.result.err()
}

#[test]
fn statuses() {
    let page = page();
    let listed = named(&page, "| number | status |");
    let found: Vec<_> = (1..0x100).filter_map(|status| Some((status, name(&failure(status)?)))).collect();
    assert_eq!(listed.first(), Some(&(0, "success".to_owned())));
    assert_eq!(listed[1..], found);
    let reason = |code: u64| {
        let completion = wire::decode_completion(&[wire::LONG | 1 << 16, 0, code], 0).ok()?;
        match completion.outcome.result {
            Err(Failure::Malformed(error)) => Some((code, name(&error))),
            _ => None,
        }
    };
    assert_eq!(named(&page, "| number | reason in"), (0..256).filter_map(reason).collect::<Vec<_>>());
}

/// Memories of a queue pair, and its ends.
struct Pair {
    client: ClientEnd<HeapWords>,
    service: ServiceEnd<HeapWords>,
    own: HeapWords,
    other: HeapWords,
    /// The memory of the workers' parked words.
    parked: HeapWords,
}

impl Pair {
    fn new(capacity: u32) -> Self {
        let layout = Layout::new(capacity).expect("a capacity");
        let own = HeapWords::zeroed(layout.client_words());
        let other = HeapWords::zeroed(layout.service_words());
        let parked = HeapWords::zeroed(ParkedWord::<HeapWords>::BYTES / 8);
        let client = ClientEnd::new(layout, own.clone(), other.clone(), parked.clone(), Fences::Full);
        let client = client.expect("the right sizes");
        let service = ServiceEnd::new(layout, own.clone(), other.clone(), Fences::Full);
        let service = service.expect("the right sizes");
        Self { client, service, own, other, parked }
    }

    /// The words of the client's memory that `act` changes.
    fn in_client(&mut self, act: impl FnOnce(&mut Self)) -> Vec<usize> {
        let memory = self.own.clone();
        self.changes(&memory, act)
    }

    /// The words of the service's memory that `act` changes.
    fn in_service(&mut self, act: impl FnOnce(&mut Self)) -> Vec<usize> {
        let memory = self.other.clone();
        self.changes(&memory, act)
    }

    fn changes(&mut self, memory: &HeapWords, act: impl FnOnce(&mut Self)) -> Vec<usize> {
        let values = || -> Vec<_> {
            (0..memory.words()).map(|word| memory.word(word).load(Ordering::Relaxed)).collect()
        };
        let before = values();
        act(self);
        let after = values();
        (0..memory.words()).filter(|word| before[*word] != after[*word]).collect()
    }

    fn request(&mut self) {
        self.client.stage(&[0; wire::SUBMISSION_WORDS]).expect("room");
        self.client.publish();
    }

    fn completions(&mut self, count: u32) {
        for _ in 0..count {
            self.service.stage(&[0; wire::COMPLETION_WORDS]).expect("room");
        }
        self.service.publish();
    }
}

/// The columns of the table of examples: capacity, client's words, S, L, service's words, P.
#[test]
fn places_for_each_capacity() {
    let examples = rows(&page(), "| capacity | client's memory |");
    assert!(examples.len() >= 4);
    for row in examples {
        let [capacity, client_words, slots, lists, service_words, progress] = <[usize; 6]>::try_from(
            row.iter().map(|cell| cell.parse().expect("a number")).collect::<Vec<_>>(),
        )
        .expect("six columns");
        let layout = Layout::new(capacity as u32).expect("a capacity");
        assert_eq!((layout.client_words(), layout.service_words()), (client_words, service_words));
        let mut pair = Pair::new(capacity as u32);
        let found = [
            pair.in_client(Pair::request)[0],
            pair.in_client(|pair| assert_eq!(pair.client.stage_list(&[1]), Ok(0)))[0],
            pair.in_service(|pair| _ = pair.service.publish_progress(0, 1, false))[0],
        ];
        assert_eq!(found, [slots, lists, progress], "capacity {capacity}");
        let first = 64.max(48 + capacity);
        assert_eq!([slots, lists, progress], [first, first + 16 * capacity, 64 + 6 * capacity]);
    }
}

#[test]
fn words_of_both_memories() {
    let page = page();
    let places = |heading: &str| -> Vec<(String, String)> {
        let part = page.split(heading).nth(1).expect("a heading");
        rows(part, "| word | name |").into_iter().map(|row| (row[1].clone(), row[0].clone())).collect()
    };
    let mut pair = Pair::new(4);
    let parked = pair.in_client(|pair| pair.client.parked().store(1, Ordering::Relaxed));
    pair.completions(3);
    let taken = pair.in_client(|pair| while pair.client.pop().is_some() {});
    let cancelled = pair.in_client(|pair| _ = pair.client.cancel(0));
    let client = [
        ("parked flag", parked[0]),
        ("completions taken", taken[0]),
        ("cancel generation", cancelled[0]),
        ("cancel words", cancelled[1]),
    ];
    let expected = client.map(|(name, word)| (name.to_owned(), word.to_string()));
    assert_eq!(places("Client's memory, L + A words:")[..4], expected);
    let parked = pair.parked.clone();
    let worker = ParkedWord::new(parked.clone(), 3).expect("the right size");
    let sleeping = pair.changes(&parked, |_| worker.set(1));
    let moved = pair.in_service(|pair| pair.service.set_worker(3));
    let wake = pair.in_service(|pair| pair.service.change_wake_word());
    pair.request();
    pair.service.pop().expect("a request");
    let taken = pair.in_service(|pair| pair.service.publish_all_consumed());
    let closed = pair.in_service(|pair| pair.service.close());
    let completed = Pair::new(4).in_service(|pair| pair.completions(1));
    let heading = "Workers' memory, 512 words, that of worker W at 8 × W:";
    assert_eq!(places(heading), [("worker parked".to_owned(), "8 × W".to_owned())]);
    assert_eq!((sleeping[0], ParkedWord::<HeapWords>::BYTES), (8 * 3, 512 * 8));
    let service = [
        ("wake word", wake[0]),
        ("submissions taken", taken[0]),
        ("closed", closed[1]),
        ("worker", moved[0]),
        ("completion slots, first parts", completed[0]),
    ];
    let expected = service.map(|(name, word)| (name.to_owned(), word.to_string()));
    assert_eq!(places("Service's memory, P + C words:")[..5], expected);
}

/// The bytes of the page's examples, a line each.
fn example_bytes(page: &str) -> Vec<Vec<u8>> {
    let part = page.split("\n## Examples\n").nth(1).expect("the examples");
    let lines = part.lines().filter_map(|line| line.strip_prefix("    "));
    let parsed = lines.map(|line| {
        line.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).ok()).collect::<Option<Vec<u8>>>()
    });
    parsed.map_while(|bytes| bytes).collect()
}

#[test]
fn examples() {
    let page = page();
    let handle = Handle::new(7, 1);
    let rights = Rights::READ | Rights::WRITE;
    let refusal = Refusal { kind: RefusalKind::Capability, message: "no".to_owned() };
    let reply = |serial, descriptors, body| -> Reply { Envelope { serial, descriptors, body } };
    let expected = [
        Hello { versions: VERSIONS, features: 0 }.encode(),
        Welcome { version: 5, features: 0, session: SessionId(258) }.encode(),
        encode(&Envelope { serial: 1, descriptors: 1, body: Command::Register { length: 4096, rights } }),
        encode(&reply(1, 0, Ok(Answer::Handle(handle)))),
        encode(&Envelope { serial: 2, descriptors: 1, body: Command::OpenQueue { capacity: 8 } }),
        encode(&reply(2, 2, Ok(Answer::Queue { queue: 0, capacity: 8 }))),
        encode(&reply(3, 0, Err(refusal))),
        encode_violation(&Violation::Serial { expected: 4, got: 3 }),
    ];
    assert_eq!(example_bytes(&page), expected);
    let copy = Operation::Copy {
        source: Span::new(handle, 16),
        destination: Span::new(Handle::new(8, 1), 0),
        length: 100,
    };
    let plain = Request::new(copy);
    let late = plain.clone().with_deadline(memferry_clock::Instant::from_nanoseconds(9));
    let [short, long] =
        [plain, late].map(|request| wire::encode_request(5, &request, &mut Vec::new()).expect("a request"));
    let outcome = Outcome { result: Ok(()), bytes_done: 50, value: 0, engine: EngineKind::Cpu };
    let cancelled = Outcome { result: Err(Failure::Cancelled), ..outcome };
    let cancelled = Completion { tag: 5, inherited: false, outcome: cancelled };
    let words = |memory: &HeapWords, words: &[std::ops::Range<usize>]| -> Vec<u64> {
        words.iter().cloned().flatten().map(|word| memory.word(word).load(Ordering::Relaxed)).collect()
    };
    let submitted = |slot: &wire::SubmissionSlot, places: &[std::ops::Range<usize>]| {
        let mut pair = Pair::new(8);
        pair.client.stage(slot).expect("room");
        pair.client.publish();
        words(&pair.own, places)
    };
    let completed = |slot: &wire::CompletionSlot, places: &[std::ops::Range<usize>]| {
        let mut pair = Pair::new(8);
        pair.service.stage(slot).expect("room");
        pair.service.publish();
        words(&pair.other, places)
    };
    let found = [
        submitted(&short, std::slice::from_ref(&(64..68))),
        submitted(&long, &[64..68, 96..108]),
        completed(&[wire::encode_success(5, EngineKind::Cpu), 0, 0], std::slice::from_ref(&(64..65))),
        completed(&wire::encode_completion(&cancelled), &[64..65, 80..82]),
    ];
    let parse = |line: &str| -> Vec<u64> {
        let number = |text: &str| match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).expect("hexadecimal"),
            None => text.parse().expect("a number"),
        };
        line.split_whitespace().map(number).collect()
    };
    let lines: Vec<_> = page.lines().collect();
    assert_eq!(lines[lines.len() - 4..].iter().map(|line| parse(line)).collect::<Vec<_>>(), found);
}
