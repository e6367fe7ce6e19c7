//! Frames over an IOMMU that records what is mapped, and can be slow or refuse.

use std::ops;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use memferry_shm::frame;

use super::*;
use memferry_vfio::Range;

const PAGE: u64 = 4096;
const SOON: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
struct Recorder {
    /// How far each frame is mapped, by where it begins.
    mapped: Mutex<BTreeMap<u64, u64>>,
    refuses: AtomicBool,
    maps: AtomicU32,
    unmaps: AtomicU32,
    /// The last address, if it is not far away.
    last: Option<u64>,
    /// `map` says that it began, and waits for a word.
    gate: Option<(mpsc::Sender<()>, Mutex<mpsc::Receiver<()>>)>,
}

/// A domain that the test looks at.
#[derive(Debug)]
struct Recorded(Arc<Recorder>);

impl ops::Deref for Recorded {
    type Target = Recorder;

    fn deref(&self) -> &Recorder {
        &self.0
    }
}

impl Domain for Recorded {
    fn ranges(&self) -> Vec<Range> {
        vec![Range { first: 0, last: self.last.unwrap_or((1 << 30) - 1) }]
    }

    fn page_bytes(&self) -> u64 {
        PAGE
    }

    fn map(&self, iova: u64, memory: &Mapping, piece: ops::Range<u64>) -> io::Result<()> {
        if let Some((began, go)) = &self.gate {
            began.send(()).unwrap();
            go.lock().unwrap().recv_timeout(SOON).unwrap();
        }
        if self.refuses.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        self.maps.fetch_add(1, Ordering::Relaxed);
        assert!(piece.end <= whole_pages(memory, PAGE) && piece.end - piece.start <= PIECE_BYTES);
        let mut mapped = self.mapped.lock().unwrap();
        let before = mapped.insert(iova, piece.end).unwrap_or(0);
        assert_eq!(before, piece.start, "pieces follow each other");
        Ok(())
    }

    fn unmap(&self, iova: u64, _: &Mapping, bytes: u64) -> io::Result<()> {
        self.unmaps.fetch_add(1, Ordering::Relaxed);
        assert_eq!(self.mapped.lock().unwrap().remove(&iova), Some(bytes));
        Ok(())
    }
}

fn frame(bytes: u64) -> Mapping {
    frame::allocate_half(bytes).unwrap().1
}

fn handle() -> Handle {
    Handle::from_bits(1)
}

fn reach(frames: &Frames<Recorded>, memory: &Mapping) -> Option<Reached> {
    frames.finder()(memory)
}

#[test]
fn a_frame_is_found_from_its_mapping_until_its_release() {
    let recorder = Arc::new(Recorder::default());
    let frames = Frames::new("test", Recorded(Arc::clone(&recorder)), None);
    let [one, two] = [frame(1), frame(3 * PAGE)];
    frames.mapped(handle(), &one);
    frames.mapped(handle(), &two);
    assert!(frames.known().waiting.is_empty(), "an owner may not have sealed it before a request names it");
    assert_eq!(
        [reach(&frames, &one), reach(&frames, &two), reach(&frames, &one)],
        [None; 3],
        "not mapped yet"
    );
    assert_eq!(frames.known().waiting.len(), 2, "each waits once");
    assert!(frames.map_next() && frames.map_next());
    let first = reach(&frames, &one).unwrap();
    let second = reach(&frames, &two).unwrap();
    assert_eq!((first.bytes, second.bytes), (one.length_bytes() as u64, 3 * PAGE));
    assert!(first.iova > 0 && first.iova + 2 * PAGE <= second.iova, "a page is free between them");
    frames.unmapping(handle(), &one);
    assert_eq!((reach(&frames, &one), recorder.mapped.lock().unwrap().len()), (None, 1));
    frames.unmapping(handle(), &one);
    assert_eq!(recorder.unmaps.load(Ordering::Relaxed), 1, "once for each mapping");
    assert_eq!(reach(&frames, &two), Some(second));
}

#[test]
fn a_frame_released_before_its_turn_is_never_mapped() {
    let recorder = Arc::new(Recorder::default());
    let frames = Frames::new("test", Recorded(Arc::clone(&recorder)), None);
    let [one, two] = [frame(PAGE), frame(PAGE)];
    frames.mapped(handle(), &one);
    frames.mapped(handle(), &two);
    assert_eq!([reach(&frames, &one), reach(&frames, &two)], [None; 2]);
    frames.unmapping(handle(), &one);
    assert!(frames.map_next());
    assert_eq!((reach(&frames, &one), recorder.unmaps.load(Ordering::Relaxed)), (None, 0));
    assert!(reach(&frames, &two).is_some());
    frames.close();
    assert!(!frames.map_next());
}

#[test]
fn a_release_waits_for_the_piece_under_way_only() {
    let (began, begun) = mpsc::channel();
    let (go, gone) = mpsc::channel();
    let recorder = Arc::new(Recorder { gate: Some((began, Mutex::new(gone))), ..Recorder::default() });
    let frames = Frames::new("test", Recorded(Arc::clone(&recorder)), None);
    let memory = frame(4 * PIECE_BYTES);
    frames.clone().mapped(handle(), &memory);
    assert_eq!(reach(&frames, &memory), None);
    frames.start().unwrap();
    begun.recv_timeout(SOON).unwrap();
    go.send(()).unwrap();
    begun.recv_timeout(SOON).unwrap();
    let (released, release) = mpsc::channel();
    let watcher = frames.clone();
    let same = memory.clone();
    let thread = std::thread::spawn(move || {
        watcher.unmapping(handle(), &same);
        released.send(()).unwrap();
    });
    // The release has begun, and cannot end: a piece is under way.
    while !matches!(frames.known().frames.get(&key(&memory)), Some(State::Unwanted)) {
        std::thread::yield_now();
    }
    assert_eq!((release.try_recv(), reach(&frames, &memory)), (Err(mpsc::TryRecvError::Empty), None));
    go.send(()).unwrap();
    release.recv_timeout(SOON).unwrap();
    thread.join().unwrap();
    assert_eq!((recorder.maps.load(Ordering::Relaxed), recorder.unmaps.load(Ordering::Relaxed)), (2, 1));
    assert!(recorder.mapped.lock().unwrap().is_empty());
    frames.close();
}

#[test]
fn a_long_frame_is_mapped_in_pieces() {
    let recorder = Arc::new(Recorder::default());
    let frames = Frames::new("test", Recorded(Arc::clone(&recorder)), None);
    let memory = frame(2 * PIECE_BYTES + PAGE);
    frames.mapped(handle(), &memory);
    assert_eq!(reach(&frames, &memory), None);
    assert!(frames.map_next());
    let reached = reach(&frames, &memory).unwrap();
    let mapped = recorder.mapped.lock().unwrap().clone();
    assert_eq!(mapped, BTreeMap::from([(reached.iova, whole_pages(&memory, PAGE))]));
    assert_eq!(recorder.maps.load(Ordering::Relaxed), 3);
    frames.unmapping(handle(), &memory);
    assert!(recorder.mapped.lock().unwrap().is_empty());
}

#[test]
fn a_frame_that_cannot_be_pinned_is_left_to_the_cpu() {
    // Room for one page and its guard.
    let recorder = Arc::new(Recorder { last: Some(3 * PAGE - 1), ..Recorder::default() });
    recorder.refuses.store(true, Ordering::Relaxed);
    let frames = Frames::new("test", Recorded(Arc::clone(&recorder)), Some(65536));
    let memory = frame(PAGE);
    frames.mapped(handle(), &memory);
    assert_eq!(reach(&frames, &memory), None);
    assert!(frames.map_next());
    assert_eq!(reach(&frames, &memory), None);
    assert!(frames.known().waiting.is_empty(), "nothing has changed, so it is not tried again");
    frames.unmapping(handle(), &memory);
    recorder.refuses.store(false, Ordering::Relaxed);
    frames.mapped(handle(), &memory);
    assert_eq!(reach(&frames, &memory), None);
    assert!(frames.map_next());
    assert_eq!(reach(&frames, &memory).map(|reached| reached.iova), Some(PAGE), "its address was given back");
}

#[test]
fn a_frame_without_room_is_tried_again_when_another_is_gone() {
    let recorder = Arc::new(Recorder { last: Some(3 * PAGE - 1), ..Recorder::default() });
    let frames = Frames::new("test", Recorded(Arc::clone(&recorder)), None);
    let [one, two] = [frame(PAGE), frame(PAGE)];
    for memory in [&one, &two] {
        frames.mapped(handle(), memory);
        assert_eq!(reach(&frames, memory), None);
        assert!(frames.map_next());
    }
    assert!(reach(&frames, &one).is_some());
    assert_eq!(reach(&frames, &two), None);
    assert_eq!(frames.known().reported, BTreeSet::from([io::ErrorKind::StorageFull]));
    frames.unmapping(handle(), &one);
    assert_eq!(reach(&frames, &two), None);
    assert!(frames.map_next());
    assert!(reach(&frames, &two).is_some());
}

#[test]
fn the_limit_is_named_if_it_was_the_cause() {
    let full = io::Error::from_raw_os_error(libc::ENOMEM);
    let remedy = pin_remedy(&full, Some(65536));
    assert!(remedy.contains("65536") && remedy.contains("LimitMEMLOCK"), "{remedy}");
    assert_eq!(pin_remedy(&full, None), "");
    assert!(pin_remedy(&io::Error::from_raw_os_error(libc::ENOSPC), None).contains("dma_entry_limit"));
    assert_eq!(pin_remedy(&io::Error::from_raw_os_error(libc::EFAULT), Some(65536)), "");
}
