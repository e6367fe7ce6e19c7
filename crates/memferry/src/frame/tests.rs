//! Derived frames, and memory that is taken back.

use memferry_service::{Quotas, ServiceConfig};

use crate::{Client, Pattern, Rights, TakeBackError, copy, fill};

#[test]
fn a_derived_frame_keeps_its_original() {
    let client = Client::embedded().unwrap();
    let mut queue = client.queue(4).unwrap();
    let from = client.frame(4096).alloc().unwrap();
    let to = client.frame(4096).alloc().unwrap();
    from.write(100, &[7; 50]).unwrap();
    let view = client.derive(from.slice(100..150), Rights::READ).unwrap();
    drop(from);
    // A staged transfer goes to a worker; `run` moves the bytes on this thread.
    let ticket = queue.stage(copy(&view, &to)).unwrap();
    queue.wait(ticket).unwrap();
    queue.run(copy(&view, &to)).unwrap();
    let mut moved = [0; 50];
    to.read(0, &mut moved).unwrap();
    assert_eq!(moved, [7; 50]);
}

#[test]
fn a_derived_frame_blocks_into_owned() {
    let client = Client::embedded().unwrap();
    let frame = client.register_owned(vec![3; 10]).unwrap();
    let view = client.derive(&frame, Rights::WRITE).unwrap();
    let Err(TakeBackError::Shared(frame)) = frame.into_owned() else { panic!("the derived frame uses it") };
    client.queue(2).unwrap().run(fill(&view, Pattern::Byte(4))).unwrap();
    drop(view);
    assert_eq!(frame.into_owned().unwrap(), [4; 10]);
}

#[test]
fn a_long_chain_drops_on_a_small_stack() {
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
