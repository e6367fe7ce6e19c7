//! Frames that hold each other, and memory that is taken back.

use memferry_service::{Quotas, ServiceConfig};

use crate::{Client, Pattern, Rights, TakeBackError, copy, fill};

#[test]
fn a_derived_frame_keeps_what_it_was_derived_from() {
    let client = Client::embedded().unwrap();
    let mut queue = client.queue(4).unwrap();
    let from = client.frame(4096).alloc().unwrap();
    let to = client.frame(4096).alloc().unwrap();
    from.write(100, &[7; 50]).unwrap();
    let view = client.derive(from.slice(100..150), Rights::READ).unwrap();
    drop(from);
    // On a worker and on this thread.
    let ticket = queue.stage(copy(&view, &to)).unwrap();
    queue.wait(ticket).unwrap();
    queue.run(copy(&view, &to)).unwrap();
    let mut moved = [0; 50];
    to.read(0, &mut moved).unwrap();
    assert_eq!(moved, [7; 50]);
}

#[test]
fn the_memory_of_a_frame_is_not_taken_back_while_a_derived_one_has_it() {
    let client = Client::embedded().unwrap();
    let frame = client.register_owned(vec![3; 10]).unwrap();
    let view = client.derive(&frame, Rights::WRITE).unwrap();
    let Err(TakeBackError::Shared(frame)) = frame.into_owned() else { panic!("it is in use") };
    client.queue(2).unwrap().run(fill(&view, Pattern::Byte(4))).unwrap();
    drop(view);
    assert_eq!(frame.into_owned().unwrap(), [4; 10]);
}

#[test]
fn a_long_row_of_derived_frames_is_let_go_of_on_a_short_stack() {
    let quotas = Quotas { capabilities: 20_000, ..Quotas::default() };
    let client =
        Client::embedded_with(ServiceConfig { quotas, workers: 1, ..ServiceConfig::default() }).unwrap();
    let mut last = client.frame(4096).alloc().unwrap();
    for _ in 0..10_000 {
        last = client.derive(&last, Rights::READ).unwrap();
    }
    let thread = std::thread::Builder::new().stack_size(128 << 10);
    thread.spawn(move || drop(last)).unwrap().join().unwrap();
}
