//! Futures of transfers: on tokio, without a runtime, dropped, cancelled, and after their queue was dropped.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use memferry::{AsyncQueue, Client, Failure, Pattern, SubmitReason, copy, crc32c, fill, nop};

use super::*;

/// Runs a future on this thread; its waker unparks the thread.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn open(client: &Client, capacity: u32) -> AsyncQueue {
    client.async_queue(capacity).expect("a queue")
}

#[test]
fn a_transfer_is_awaited_without_a_runtime() {
    let client = client();
    let source = frame(&client);
    let destination = frame(&client);
    source.write(0, &[7; FRAME_BYTES as usize]).expect("access to the frame");
    let queue = open(&client, 4);
    for _ in 0..50 {
        let copy = copy(&source, &destination);
        let ended = block_on(queue.submit(copy).expect("room"));
        assert_eq!(outcome(ended), Ok(FRAME_BYTES));
    }
    let crc = block_on(queue.submit(crc32c(&source)).expect("room")).expect("done").output;
    assert_eq!(block_on(queue.submit(crc32c(&destination)).expect("room")).expect("done").output, crc);
    assert_eq!(contents(&destination), [7; FRAME_BYTES as usize]);
}

#[test]
fn many_tokio_tasks_share_a_queue() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    runtime.block_on(async {
        let client = client();
        let queue = open(&client, 64);
        let tasks: Vec<_> = (0..40_u8)
            .map(|byte| {
                let queue = queue.clone();
                let frame = frame(&client);
                tokio::spawn(async move {
                    let fill = fill(&frame, Pattern::Byte(byte));
                    let ended = queue.submit(fill).expect("room").await;
                    (outcome(ended), contents(&frame))
                })
            })
            .collect();
        for (byte, task) in (0..40_u8).zip(tasks) {
            let (outcome, bytes) = task.await.expect("no panic");
            assert_eq!((outcome, bytes), (Ok(FRAME_BYTES), vec![byte; FRAME_BYTES as usize]));
        }
    });
}

#[test]
fn a_dropped_future_frees_its_slot() {
    let client = client();
    let frame = frame(&client);
    let queue = open(&client, 2);
    for byte in 1..=20 {
        let pending = queue.submit(fill(&frame, Pattern::Byte(byte)));
        let pending = pending.expect("room, since completions of dropped futures are taken");
        let waker = Waker::noop();
        let mut pending = Box::pin(pending);
        // Every second future is polled before it is dropped.
        if byte % 2 == 0 {
            let _ = pending.as_mut().poll(&mut Context::from_waker(waker));
        }
        drop(pending);
        let last = block_on(queue.submit(nop().fenced()).expect("room"));
        assert_eq!(outcome(last), Ok(0));
        assert_eq!(contents(&frame)[17], byte, "the transfer did not run");
    }
}

#[test]
fn a_full_queue_refuses_until_futures_end() {
    let client = client();
    let frame = frame(&client);
    let queue = open(&client, 2);
    let pending = [(); 2].map(|()| queue.submit(endless(&frame)).expect("room"));
    let refused = queue.submit(nop()).err().expect("no room");
    assert_eq!(refused.reason, SubmitReason::Full { capacity: 2 });
    for pending in pending {
        pending.cancel().expect("a running transfer");
        assert_eq!(outcome(block_on(pending)), Err(Failure::Cancelled));
    }
    assert_eq!(outcome(block_on(queue.submit(*refused.transfer).expect("room"))), Ok(0));
}

#[test]
fn a_future_outlives_its_queue() {
    struct Count(AtomicU32);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let client = client();
    let frame = frame(&client);
    let queue = open(&client, 4);
    let mut pending = Box::pin(queue.submit(endless(&frame)).expect("room"));
    drop(queue);
    let first = Arc::new(Count(AtomicU32::new(0)));
    let second = Arc::new(Count(AtomicU32::new(0)));
    for count in [&first, &second] {
        let waker = Waker::from(Arc::clone(count));
        assert!(pending.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    pending.cancel().expect("a running transfer");
    assert_eq!(outcome(block_on(pending.as_mut())), Err(Failure::Cancelled));
    assert_eq!(first.0.load(Ordering::SeqCst), 0, "a replaced waker was woken");
}
