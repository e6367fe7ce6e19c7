//! Transfers awaited: on tokio, on no runtime, dropped, cancelled, left behind by their queue.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use memferry::{AsyncQueue, Client, Failure, Pattern, SubmitReason, copy, crc32c, fill, nop};

use super::*;

/// Runs a future on this thread and nothing else: the waker unparks it.
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
    source.write(0, &[7; FRAME_BYTES as usize]).expect("its bytes");
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
fn many_tasks_of_tokio_share_a_channel() {
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
fn a_dropped_future_detaches_and_its_room_comes_back() {
    let client = client();
    let frame = frame(&client);
    let queue = open(&client, 2);
    for byte in 1..=20 {
        // Polled or not before it is dropped.
        let pending = queue.submit(fill(&frame, Pattern::Byte(byte)));
        let pending = pending.expect("room, for a detached transfer's end is taken");
        let waker = Waker::noop();
        let mut pending = Box::pin(pending);
        if byte % 2 == 0 {
            let _ = pending.as_mut().poll(&mut Context::from_waker(waker));
        }
        drop(pending);
        let last = block_on(queue.submit(nop().fenced()).expect("room"));
        assert_eq!(outcome(last), Ok(0));
        assert_eq!(contents(&frame)[17], byte, "the transfer went on");
    }
}

#[test]
fn a_full_channel_gives_the_transfer_back_and_a_cancelled_future_tells_so() {
    let client = client();
    let frame = frame(&client);
    let queue = open(&client, 2);
    let pending = [(); 2].map(|()| queue.submit(endless(&frame)).expect("room"));
    let refused = queue.submit(nop()).err().expect("no room");
    assert_eq!(refused.reason, SubmitReason::Full { capacity: 2 });
    for pending in pending {
        pending.cancel().expect("it runs");
        assert_eq!(outcome(block_on(pending)), Err(Failure::Cancelled));
    }
    assert_eq!(outcome(block_on(queue.submit(*refused.transfer).expect("room"))), Ok(0));
}

#[test]
fn futures_outlive_their_channel_and_wake_the_waker_they_were_polled_with_last() {
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
    pending.cancel().expect("it runs");
    assert_eq!(outcome(block_on(pending.as_mut())), Err(Failure::Cancelled));
    assert_eq!(first.0.load(Ordering::SeqCst), 0, "another waker took its place");
}
