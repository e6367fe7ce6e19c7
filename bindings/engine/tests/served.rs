//! The example engine at a real service: clients' transfers go to it, it is killed and comes back, and so does the service.
//!
//! ```text
//! this test ─ client ─► service: this test's binary in a role ◄─ the example engine, compiled from C
//! ```

mod harness;

use std::path::Path;
use std::time::{Duration, Instant};

use harness::{Example, Known, PATIENCE, Socket, own_user, start_service};
use memferry::{
    Client, EngineKind, ExportKind, Frame, Pattern, Queue, compare, copy, fill, scatter_gather, xor,
};

const LENGTH: u64 = 3 << 20;

struct User {
    client: Client,
    queue: Queue,
    source: Frame,
    destination: Frame,
}

impl User {
    fn connect(socket: &Path) -> Self {
        let client = Client::connect(socket).unwrap();
        let source = client.frame(LENGTH).alloc().unwrap();
        let destination = client.frame(LENGTH).alloc().unwrap();
        Self { queue: client.queue(16).unwrap(), source, destination, client }
    }

    /// A copy of all, which must be right whoever does it. Returns who did.
    fn copies(&mut self, byte: u8) -> EngineKind {
        self.source.write(0, &[byte; 64]).unwrap();
        self.source.write(LENGTH - 64, &[byte; 64]).unwrap();
        let done = self.queue.run(copy(&self.source, &self.destination)).unwrap();
        assert_eq!(done.bytes_done, LENGTH);
        for offset in [0, LENGTH - 64] {
            let mut bytes = [0; 64];
            self.destination.read(offset, &mut bytes).unwrap();
            assert_eq!(bytes, [byte; 64]);
        }
        done.engine
    }

    /// Copies until the engine process does it.
    fn copies_until_external(&mut self) {
        let end = Instant::now() + PATIENCE;
        let mut byte = 0;
        while self.copies(byte) != EngineKind::External {
            assert!(Instant::now() < end, "no copy went to the engine process");
            byte = byte.wrapping_add(1);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The user's memory was registered while the engine ran.
fn connect_with_engine(socket: &Path) -> User {
    let end = Instant::now() + PATIENCE;
    loop {
        let mut user = User::connect(socket);
        if user.copies(1) == EngineKind::External {
            return user;
        }
        assert!(Instant::now() < end, "no engine process has attached");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Memory of its own: zeroed, used in both directions and within, freed in the end and given again.
fn uses_own_memory(user: &mut User) {
    let far = user.client.frame(2 * LENGTH).home("example").alloc().unwrap();
    assert!(user.client.frame(1).home("example").alloc().is_err(), "all of it is taken");
    user.queue.run(copy(far.slice(..LENGTH), &user.destination)).unwrap();
    let mut bytes = [0; 12];
    user.destination.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 12]);
    user.source.write(0, b"Own memory..").unwrap();
    user.queue.run(copy(&user.source, far.slice(LENGTH..))).unwrap();
    // They overlap, and so do the pieces of the lists.
    user.queue.run(copy(far.slice(LENGTH..), far.slice(3..LENGTH + 3))).unwrap();
    let lists = ([far.slice(3..LENGTH + 3)], [far.slice(..LENGTH)]);
    user.queue.run(scatter_gather(lists.0, lists.1)).unwrap();
    let done = user.queue.run(copy(far.slice(..12), user.destination.slice(..12))).unwrap();
    assert_eq!((done.engine, done.bytes_done), (EngineKind::External, 12));
    user.destination.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"Own memory..");
    // The same bytes in a mapping of this process.
    let exported = far.export().unwrap();
    assert_eq!((exported.kind, exported.length), (ExportKind::Memory, 2 * LENGTH));
    let memory = exported.map().unwrap();
    memory.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"Own memory..");
    memory.write(LENGTH, b"by a mapping").unwrap();
    user.queue.run(copy(far.slice(LENGTH..LENGTH + 12), user.destination.slice(..12))).unwrap();
    user.destination.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"by a mapping");
    assert!(
        user.queue.run(xor([&far, &far], &far)).is_err(),
        "it does not perform this, and nobody else can"
    );
}

#[test]
fn the_example_engine_serves_clients() {
    let socket = Socket::fresh("served");
    let known = Known::own(None);
    let service = start_service(&socket.0, &known);
    let example = Example::compile("served").with_memory(2 * LENGTH);
    let mut keeper = example.start(&socket.0, own_user(), "65536");
    let mut user = connect_with_engine(&socket.0);

    // What it performs, and what it leaves to the CPU.
    let done = user.queue.run(fill(&user.destination, Pattern::Half(0x1234))).unwrap();
    assert_eq!(done.engine, EngineKind::External);
    let done = user
        .queue
        .run(compare(user.destination.slice(..LENGTH / 2), user.destination.slice(LENGTH / 2..)))
        .unwrap();
    assert_eq!((done.engine, done.output), (EngineKind::External, None));
    user.destination.write(LENGTH - 2, &[0]).unwrap();
    let halves = [user.destination.slice(..LENGTH / 2), user.destination.slice(LENGTH / 2..)];
    let done = user.queue.run(compare(halves[0].clone(), halves[1].clone())).unwrap();
    assert_eq!((done.engine, done.output), (EngineKind::External, Some(LENGTH / 2 - 2)));
    let [one, other] = [user.source.slice(..LENGTH - 7), user.source.slice(LENGTH - 7..)];
    user.source.write(0, b"first").unwrap();
    user.source.write(LENGTH - 7, b"last...").unwrap();
    let swapped = scatter_gather([other, one], [user.destination.slice(..)]);
    assert_eq!(user.queue.run(swapped).unwrap().engine, EngineKind::External);
    let mut bytes = [0; 12];
    user.destination.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"last...first");
    let done = user.queue.run(xor([&user.source, &user.source], &user.destination)).unwrap();
    assert_eq!(done.engine, EngineKind::Cpu);
    // A copy that writes what it reads could not be repeated if the engine died.
    let up = copy(user.source.slice(..LENGTH - 5), user.source.slice(5..));
    assert_eq!(user.queue.run(up).unwrap().engine, EngineKind::Cpu);

    for _ in 0..3 {
        uses_own_memory(&mut user);
    }

    // It comes back with frames that have been sealed long ago.
    for _ in 0..3 {
        let engine = keeper.engine().expect("the keeper has an engine");
        let engine = rustix::process::Pid::from_raw(engine).unwrap();
        rustix::process::kill_process(engine, rustix::process::Signal::KILL).unwrap();
        user.copies_until_external();
        assert_ne!(keeper.engine(), Some(engine.as_raw_nonzero().get()));
    }

    // The service is restarted under it.
    drop(user);
    drop(service);
    let _ = std::fs::remove_file(&socket.0);
    let _service = start_service(&socket.0, &known);
    let mut user = connect_with_engine(&socket.0);
    user.copies_until_external();

    // It ends in order, and transfers go on.
    let number = rustix::process::Pid::from_raw(keeper.0.id() as i32).unwrap();
    rustix::process::kill_process(number, rustix::process::Signal::TERM).unwrap();
    assert_eq!(keeper.0.wait().unwrap().code(), Some(0));
    let end = Instant::now() + PATIENCE;
    while user.copies(7) != EngineKind::Cpu {
        assert!(Instant::now() < end);
    }
}
