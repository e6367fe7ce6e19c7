//! What the keeper checks and how it waits, without a service.

use memferry_external::EngineDescription;

use super::*;

fn options(name: &str) -> EngineOptions {
    EngineOptions {
        socket: "/nonexistent/memferry.sock".into(),
        name: name.to_owned(),
        description: EngineDescription::default(),
    }
}

fn refused(options: EngineOptions) -> RunError {
    run(options, |_| Ok::<(), String>(())).unwrap_err()
}

#[test]
fn wrong_options_are_refused_at_once() {
    for name in ["", "Upper", "a name", &"x".repeat(33)] {
        assert!(matches!(refused(options(name)), RunError::Name(_)), "{name}");
    }
    let mut wrong = options("copies");
    wrong.description.channels = 0;
    assert!(matches!(refused(wrong), RunError::Description(_)));
}

#[test]
fn a_process_with_threads_cannot_be_a_keeper() {
    // The test's own runner is the second thread.
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || receiver.recv());
        assert!(matches!(refused(options("copies")), RunError::Threads));
        drop(sender);
    });
}

#[test]
fn pauses_grow_and_are_reset_by_a_good_run() {
    let mut pause = Pause::default();
    let pauses: Vec<_> = (0..8).map(|_| pause.next().as_millis()).collect();
    assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    pause.has_run(Duration::from_secs(9), false);
    assert_eq!(pause.next(), PAUSES.1);
    pause.has_run(Duration::from_secs(10), false);
    assert_eq!(pause.next(), PAUSES.0);
}

#[test]
fn work_as_long_as_the_pause_is_a_good_run() {
    let mut pause = Pause::default();
    pause.next();
    pause.has_run(Duration::from_millis(99), true);
    assert_eq!(pause.next(), 2 * PAUSES.0, "it was away for longer than it worked");
    pause.has_run(Duration::from_millis(200), false);
    assert_eq!(pause.next(), 4 * PAUSES.0, "it did nothing");
    pause.has_run(Duration::from_millis(400), true);
    assert_eq!(pause.next(), PAUSES.0);
}
