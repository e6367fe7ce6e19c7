//! The view agrees with the capability table, whatever happened to that.

use memferry_path::Grantee;
use memferry_shm::capability_view;
use memferry_transfer::{Operation, Span};
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

const SESSIONS: [SessionId; 2] = [SessionId(1), SessionId(2)];
const USER: u32 = 1000;
const BYTES: u64 = 64;

#[derive(Clone, Debug)]
enum Step {
    Register(usize, u8),
    Derive(usize, Index, (u64, u64), u8),
    Pass(usize, Index, (u64, u64), u8),
    Revoke(usize, Index),
    Close(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let session = 0..2_usize;
    let range = (0..BYTES, 1..BYTES);
    let any = any::<Index>;
    prop_oneof![
        2 => (session.clone(), 1..8_u8).prop_map(|(session, rights)| Step::Register(session, rights)),
        3 => (session.clone(), any(), range.clone(), 1..8_u8)
            .prop_map(|(session, of, range, rights)| Step::Derive(session, of, range, rights)),
        3 => (session.clone(), any(), range, 1..8_u8)
            .prop_map(|(session, of, range, rights)| Step::Pass(session, of, range, rights)),
        2 => (session.clone(), any()).prop_map(|(session, of)| Step::Revoke(session, of)),
        1 => session.prop_map(Step::Close),
    ]
}

/// Does a step; what the table refuses changes nothing.
fn take(table: &mut Capabilities<Mapping>, handles: &mut Vec<Handle>, step: Step) {
    let pick = |of: &Index, handles: &[Handle]| (!handles.is_empty()).then(|| *of.get(handles));
    match step {
        Step::Register(session, rights) => {
            let memory = Mapping::owned(vec![0; BYTES as usize]);
            let rights = Rights::from_bits_truncate(rights);
            handles.extend(table.register(SESSIONS[session], memory, rights));
        }
        Step::Derive(session, of, range, rights) => {
            let rights = Rights::from_bits_truncate(rights);
            let derived =
                pick(&of, handles).and_then(|of| table.derive(SESSIONS[session], of, range, rights).ok());
            handles.extend(derived);
        }
        Step::Pass(session, of, range, rights) => {
            let rights = Rights::from_bits_truncate(rights);
            let to = SESSIONS[1 - session];
            let Some(of) = pick(&of, handles) else { return };
            let Ok(token) = table.grant(SESSIONS[session], of, range, rights, Grantee::Session(to)) else {
                return;
            };
            handles.push(token.handle());
            handles.extend(table.accept(to, USER, token).map(|accepted| accepted.handle));
        }
        Step::Revoke(session, of) => {
            let _ = pick(&of, handles).map(|of| table.revoke(SESSIONS[session], of));
        }
        Step::Close(session) => {
            table.close(SESSIONS[session]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_view_allows_what_the_table_allows(
        steps in proptest::collection::vec(step(), 1..60),
        (offset, length) in (0..BYTES, 0..BYTES),
    ) {
        let view = Arc::new(View::new(1, Fences::Full));
        let mut reader = view.reader().unwrap();
        let mut table = Capabilities::new(40).with_mirror(Mirrored(Arc::clone(&view)));
        let mut handles = Vec::new();
        for step in steps {
            take(&mut table, &mut handles, step);
            let guard = reader.enter();
            for session in SESSIONS {
                for pair in handles.windows(2) {
                    let source = Span::new(pair[0], offset);
                    let destination = Span::new(pair[1], 0);
                    let from = guard.source(session, &source, length);
                    let to = guard.destination(session, &destination, length);
                    let allowed = from.zip(to).map(|(from, to)| capability_view::copy(from, to));
                    let operation = Operation::Copy { source, destination, length };
                    let expected = table.borrowed(session, &operation, u64::MAX).is_ok();
                    prop_assert_eq!(allowed, expected.then_some(Ok(())));
                }
            }
            drop(guard);
            drop(table.take_dropped());
            view.retire();
        }
    }
}

#[test]
fn each_thread_counts_its_own_waits_for_the_table() {
    let handles = WorkerHandle::all(1).unwrap();
    let team = Arc::new(CopyTeam::new(1, |_| ()));
    let shared = Shared::new(8, (handles, vec![0], Fences::Full), team, 0).unwrap();
    let before = table_waits();
    drop(shared.for_worker());
    shared.between_parts();
    assert_eq!(table_waits(), before, "nobody waits");
    let table = shared.for_worker();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            drop(shared.for_worker());
            table_waits()
        });
        while shared.waiting.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        drop(table);
        assert!(other.join().unwrap().time > Duration::ZERO, "it found the table locked");
    });
    assert_eq!(table_waits(), before, "another thread's waits");
    shared.waiting.store(1, Ordering::Relaxed);
    shared.between_parts();
    assert!(table_waits().time >= before.time + YIELDING, "{before:?}, {:?}", table_waits());
    // A round in which it loses its CPU before it would sleep has no sleep.
    assert!((0..1000).any(|_| {
        shared.between_parts();
        table_waits().sleeps > before.sleeps
    }));
}
